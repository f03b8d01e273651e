"""Compression codecs of record batches, with a limit on the size of decompressed data.

Regardless of the sizes that a frame declares, decompression fills at most `max_bytes` and a few MiB
of working space. Output is read in chunks, and declared sizes are checked before use. Compression
writes the same frames as Kafka: LZ4 in independent 64 KiB blocks, Snappy in xerial's framing. The
libraries are imported on first use, because most brokers never decompress.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from enum import IntEnum
from functools import cache
from typing import Any, Final

from millstream.wire.records.corrupt import (
    DecompressedTooLarge,
    UnknownCodec,
    UnreadableCompression,
)

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The numbers in the attributes of a batch, and the names of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CHUNK: Final = 256 * 1024
# Unread input of a decompressor is copied, so keep the chunk small.
_INPUT_CHUNK: Final = 64 * 1024

_GZIP_WRAPPER: Final = 31
_GZIP_START: Final = b"\x1f\x8b"
_MAX_GZIP_MEMBERS: Final = 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_SNAPPY_MAX_RATIO: Final = 22  # the densest element: 64 bytes out of 3

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Kafka's level for the fast compressor; every other level is the high compressor.
_LZ4_DEFAULT_LEVEL: Final = 9
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DICTIONARY: Final = 0x01

_ZSTD_DEFAULT_LEVEL: Final = 3
# The window of level 22 when streamed. It is only address space until output fills it.
_ZSTD_MAX_WINDOW_LOG: Final = 27
_ZSTD_MAX_HEADER: Final = 18
# Each frame costs a decompressor, 13 µs. Producers write one.
_MAX_ZSTD_FRAMES: Final = 1024
_ZSTD_MAX_RATIO: Final = 32 * 1024  # a run-length block: 128 KiB out of 4 bytes


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """Compress.

    `level` None is the codec's default; `magic` 0 uses the LZ4 header of old clients.
    """
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return _gzip(data, level)
    if codec == Codec.SNAPPY:
        return _xerial(data)
    if codec == Codec.LZ4:
        return _lz4(data, level, magic)
    if codec == Codec.ZSTD:
        return _zstd(data, level)
    raise UnknownCodec(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, *, max_bytes: int, magic: int = 2) -> bytes:
    """Decompress, or raise DecompressedTooLarge, UnreadableCompression or UnknownCodec."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return _gunzip(data, max_bytes)
    if codec == Codec.SNAPPY:
        return _unsnappy(data, max_bytes)
    if codec == Codec.LZ4:
        return _unlz4(data if magic else _with_right_header_checksum(data), max_bytes)
    if codec == Codec.ZSTD:
        return _unzstd(data, max_bytes)
    raise UnknownCodec(f"unknown compression codec {codec}")


class _Bounded(io.BytesIO):
    """Collects output up to a limit. BytesIO returns its buffer without a copy."""

    def __init__(self, limit: int, guess: int) -> None:
        super().__init__()
        self.limit = limit
        self.chunk = min(max(guess, 4096), _CHUNK)

    def room(self) -> int:
        """Return the size of the next read: one byte over the limit shows that there is more."""
        return min(self.chunk, self.limit + 1 - self.tell())

    def add(self, piece: bytes) -> None:
        if self.tell() + len(piece) > self.limit:
            raise DecompressedTooLarge(f"the batch decompresses to more than {self.limit} bytes")
        self.write(piece)


# ---------------------------------------------------------------- gzip


@cache
def _zlib() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _gzip(data: Buffer, level: int | None) -> bytes:
    """Compress. An explicit level uses zlib, because ISA-L's levels differ (2 is near zlib's 6)."""
    fast = _zlib()
    if level is None or level == -1:
        default = -1 if fast is zlib else 2
        return bytes(fast.compress(data, default, _GZIP_WRAPPER))
    return zlib.compress(data, level, _GZIP_WRAPPER)


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    """Decompress consecutive members as one stream; bytes after them are ignored, as in Java."""
    out = _Bounded(max_bytes, 4 * len(data))
    view = memoryview(data)
    try:
        for _ in range(_MAX_GZIP_MEMBERS):
            view = _gunzip_member(view, out)
            if bytes(view[:2]) != _GZIP_START:
                return out.getvalue()
    except (zlib.error, _zlib().error, EOFError) as error:
        raise UnreadableCompression(f"gzip: {error}") from None
    raise UnreadableCompression(f"gzip: more than {_MAX_GZIP_MEMBERS} members")


def _gunzip_member(view: memoryview, out: _Bounded) -> memoryview:
    stream = _zlib().decompressobj(_GZIP_WRAPPER)
    pos = 0
    pending: Buffer = b""
    while not stream.eof:
        if not pending:
            pending = view[pos : pos + _INPUT_CHUNK]
            pos += len(pending)
        piece = stream.decompress(pending, out.room())
        if not piece and not pending and not stream.eof:
            raise EOFError("the stream is truncated")
        out.add(piece)
        pending = stream.unconsumed_tail
    return view[pos - len(stream.unused_data) :]


# ---------------------------------------------------------------- snappy


def _xerial(data: Buffer) -> bytes:
    """Compress to a header and length-prefixed blocks: the framing of snappy-java and Kafka."""
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    """Decompress a raw block (which librdkafka and others write) or xerial's framing."""
    view = memoryview(data)
    framed = bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(view) if framed else [view]
    sizes = [_snappy_size(block) for block in blocks]
    total = sum(sizes)
    if total > max_bytes:
        raise DecompressedTooLarge(
            f"the batch decompresses to {total} bytes, more than {max_bytes}"
        )
    return _unsnappy_blocks(blocks, sizes, total)


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    pos = len(_XERIAL_HEADER)
    if len(view) < pos:
        raise UnreadableCompression("snappy: the header is truncated")
    while pos < len(view):
        size = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if not 0 < size <= len(view) - pos:
            raise UnreadableCompression(
                f"snappy: a block of {size} bytes, {len(view) - pos} are left", pos
            )
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    """Return the declared decompressed size of a block; raise if it is impossible."""
    import cramjam

    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise UnreadableCompression(str(error)) from None
    if size > len(block) * _SNAPPY_MAX_RATIO or not len(block):
        raise UnreadableCompression(f"snappy: {len(block)} bytes claim to hold {size}")
    return size


def _unsnappy_blocks(blocks: list[memoryview], sizes: list[int], total: int) -> bytes:
    import cramjam

    if not total:
        return b""
    out = io.BytesIO()
    out.seek(total - 1)
    out.write(b"\0")
    pos = 0
    try:
        with out.getbuffer() as target:
            for block, size in zip(blocks, sizes, strict=True):
                cramjam.snappy.decompress_raw_into(block, target[pos : pos + size])
                pos += size
    except cramjam.DecompressionError as error:
        raise UnreadableCompression(str(error)) from None
    return out.getvalue()


# ---------------------------------------------------------------- lz4


def _lz4(data: Buffer, level: int | None, magic: int) -> bytes:
    from lz4 import frame

    if level is None or level == _LZ4_DEFAULT_LEVEL:
        level = 0
    else:
        level = max(level, frame.COMPRESSIONLEVEL_MINHC)
    packed: bytes = frame.compress(
        data,
        compression_level=level,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,  # Java's reader rejects linked blocks
        store_size=False,
    )
    return packed if magic else _with_broken_header_checksum(packed)


def _unlz4(data: Buffer, max_bytes: int) -> bytes:
    """Decompress the first frame. As in Kafka, bytes after its end mark are ignored."""
    from lz4 import frame

    view = memoryview(data)
    if bytes(view[:4]) != _LZ4_MAGIC:
        raise UnreadableCompression("lz4: the data does not start with a frame")
    out = _Bounded(max_bytes, 4 * len(data))
    context = frame.create_decompression_context()
    pos = 0
    done = False
    try:
        while not done:
            piece, used, done = frame.decompress_chunk(
                context, view[pos : pos + _INPUT_CHUNK], max_length=out.room()
            )
            if not piece and not used and not done:
                raise UnreadableCompression("lz4: the frame is truncated", pos)
            out.add(piece)
            pos += used
    except RuntimeError as error:
        raise UnreadableCompression(f"lz4: {error}", pos) from None
    return out.getvalue()


def _with_broken_header_checksum(packed: bytes) -> bytes:
    """Return the frame with the header checksum of clients before 0.10 (KAFKA-3160).

    They wrongly include the magic number, and check it that way.
    """
    end = _lz4_descriptor_end(packed)
    return packed[:end] + _header_checksum(packed[:end]) + packed[end + 1 :]


def _with_right_header_checksum(data: Buffer) -> bytes:
    packed = bytes(data)
    if len(packed) < 7:
        raise UnreadableCompression("lz4: the frame is truncated")
    end = _lz4_descriptor_end(packed)
    return packed[:end] + _header_checksum(packed[4:end]) + packed[end + 1 :]


def _lz4_descriptor_end(packed: bytes) -> int:
    flags = packed[4]
    return 6 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)


def _header_checksum(descriptor: bytes) -> bytes:
    return bytes(((_xxh32_short(descriptor) >> 8) & 0xFF,))


def _xxh32_short(data: bytes) -> int:
    """Return XXH32 with seed 0, for fewer than 16 bytes; a frame header is never longer."""
    prime1, prime2, prime3, prime4, prime5 = (
        2654435761,
        2246822519,
        3266489917,
        668265263,
        374761393,
    )
    mask = 0xFFFFFFFF
    whole = len(data) & ~3
    value = prime5 + len(data)
    for pos in range(0, whole, 4):
        value = (value + int.from_bytes(data[pos : pos + 4], "little") * prime3) & mask
        value = ((value << 17 | value >> 15) & mask) * prime4 & mask
    for byte in data[whole:]:
        value = (value + byte * prime5) & mask
        value = ((value << 11 | value >> 21) & mask) * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16


# ---------------------------------------------------------------- zstd


@cache
def _zstd_library() -> Any:
    """Return the module of Python 3.14, or its backport for older versions."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _zstd(data: Buffer, level: int | None) -> bytes:
    compressor = _zstd_library().ZstdCompressor(_ZSTD_DEFAULT_LEVEL if level is None else level)
    packed: bytes = compressor.compress(data, compressor.FLUSH_FRAME)
    return packed


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    """Decompress all frames.

    A truncated frame without a content size returns partial data; the record count then reveals it.
    """
    zstd = _zstd_library()
    out = _Bounded(max_bytes, 4 * len(data))
    view = memoryview(data)
    try:
        declared = zstd.get_frame_info(view[:_ZSTD_MAX_HEADER]).decompressed_size or 0
        _check_zstd_size(declared, len(data), max_bytes)
        for _ in range(_MAX_ZSTD_FRAMES):
            view = _unzstd_frame(zstd, view, out)
            if not len(view):
                break
        else:
            raise UnreadableCompression(f"zstd: more than {_MAX_ZSTD_FRAMES} frames")
    except zstd.ZstdError as error:
        raise UnreadableCompression(f"zstd: {error}") from None
    if out.tell() < declared:
        raise UnreadableCompression(f"zstd: {out.tell()} bytes where the frame declares {declared}")
    return out.getvalue()


def _unzstd_frame(zstd: Any, view: memoryview, out: _Bounded) -> memoryview:
    """Decompress one frame, up to the end of the data, and return the rest."""
    options = {zstd.DecompressionParameter.window_log_max: _ZSTD_MAX_WINDOW_LOG}
    stream = zstd.ZstdDecompressor(options=options)
    pos = 0
    while not stream.eof:
        pending: Buffer = b""
        if stream.needs_input:
            pending = view[pos : pos + _INPUT_CHUNK]
            pos += len(pending)
        piece = stream.decompress(pending, out.room())
        out.add(piece)
        if not piece and not pending and pos == len(view):
            break
    return view[pos - len(stream.unused_data) :]


def _check_zstd_size(declared: int, packed: int, max_bytes: int) -> None:
    if declared > max_bytes:
        raise DecompressedTooLarge(
            f"the batch decompresses to {declared} bytes, more than {max_bytes}"
        )
    if declared > packed * _ZSTD_MAX_RATIO:
        raise UnreadableCompression(f"zstd: {packed} bytes claim to hold {declared}")
