"""Compression codecs of record batches, with a bound on what decompression may produce.

Whatever a frame declares, no more than `max_bytes` (and a few MiB of working space) is ever filled: output is
taken in chunks, and sizes told by the data are checked before they are used. The frames written are those that
Kafka itself writes: LZ4 in independent 64 KiB blocks, Snappy in xerial's framing. The libraries are imported on first
use, since most brokers never decompress anything.
"""

from __future__ import annotations

import io
import struct
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
_INPUT_CHUNK: Final = 64 * 1024  # what a decompressor gives back unread is copied: keep that small

_GZIP_WRAPPER: Final = 31
_GZIP_START: Final = b"\x1f\x8b"
_MAX_GZIP_MEMBERS: Final = 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_SNAPPY_MAX_RATIO: Final = 22  # the densest element: 64 bytes out of 3

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_DEFAULT_LEVEL: Final = (
    9  # Kafka's number for the fast compressor; every other level is the high compressor
)
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DICTIONARY: Final = 0x01

_ZSTD_DEFAULT_LEVEL: Final = 3
_ZSTD_MAX_WINDOW: Final = 128 << 20  # level 22, streamed; address space only, until output fills it
_ZSTD_MAX_RATIO: Final = 32 * 1024  # a run-length block: 128 KiB out of 4 bytes


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """`level` None means the codec's default; `magic` 0 asks for the LZ4 header that its clients expect."""
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
    raise UnknownCodec(f"there is no compression codec {codec}")


def decompress(codec: int, data: Buffer, *, max_bytes: int, magic: int = 2) -> bytes:
    """Raises DecompressedTooLarge or UnreadableCompression, or UnknownCodec."""
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
    raise UnknownCodec(f"there is no compression codec {codec}")


class _Bounded(io.BytesIO):
    """Collects output and ends it at the limit. BytesIO hands out its buffer without a copy at the end."""

    def __init__(self, limit: int, guess: int) -> None:
        super().__init__()
        self.limit = limit
        self.chunk = min(max(guess, 4096), _CHUNK)

    def room(self) -> int:
        """How much to ask a decompressor for: one byte beyond the limit tells that there is more."""
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
    """ISA-L has levels of its own (2 is near zlib's 6), so a level that someone chose means zlib's."""
    fast = _zlib()
    if level is None or level == -1:
        default = -1 if fast is zlib else 2
        return bytes(fast.compress(data, default, _GZIP_WRAPPER))
    return zlib.compress(data, level, _GZIP_WRAPPER)


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    """Members that follow each other are one stream; what follows them is ignored, as Java does."""
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
            raise EOFError("the stream ends too early")
        out.add(piece)
        pending = stream.unconsumed_tail
    return view[pos - len(stream.unused_data) :]


# ---------------------------------------------------------------- snappy


def _xerial(data: Buffer) -> bytes:
    """Blocks with a length before each, behind a header: the framing of snappy-java, hence of Kafka."""
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    """One raw block (librdkafka and others write that) or xerial's framing."""
    view = memoryview(data)
    framed = bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(view) if framed else [view]
    sizes = [_snappy_size(block) for block in blocks]
    total = sum(sizes)
    if total > max_bytes:
        raise DecompressedTooLarge(f"the batch decompresses to {total} bytes, more than {max_bytes}")
    return _unsnappy_blocks(blocks, sizes, total)


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    pos = len(_XERIAL_HEADER)
    if len(view) < pos:
        raise UnreadableCompression("snappy: the header ends too early")
    while pos < len(view):
        size = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if not 0 < size <= len(view) - pos:
            raise UnreadableCompression(f"snappy: a block of {size} bytes, {len(view) - pos} are left", pos)
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    """What a block says that it decompresses to, if that is possible."""
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
        block_linked=False,  # Java's reader refuses linked blocks
        store_size=False,
    )
    return packed if magic else _with_broken_header_checksum(packed)


def _unlz4(data: Buffer, max_bytes: int) -> bytes:
    """The first frame, as Kafka reads it; bytes behind its end mark are ignored."""
    from lz4 import frame

    view = memoryview(data)
    if bytes(view[:4]) != _LZ4_MAGIC:
        raise UnreadableCompression("lz4: no frame starts here")
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
                raise UnreadableCompression("lz4: the frame ends too early", pos)
            out.add(piece)
            pos += used
    except RuntimeError as error:
        raise UnreadableCompression(f"lz4: {error}", pos) from None
    return out.getvalue()


def _with_broken_header_checksum(packed: bytes) -> bytes:
    """Clients before 0.10 took the header's checksum over the magic number too, and check it so (KAFKA-3160)."""
    end = _lz4_descriptor_end(packed)
    return packed[:end] + _header_checksum(packed[:end]) + packed[end + 1 :]


def _with_right_header_checksum(data: Buffer) -> bytes:
    packed = bytes(data)
    if len(packed) < 7:
        raise UnreadableCompression("lz4: the frame ends too early")
    end = _lz4_descriptor_end(packed)
    return packed[:end] + _header_checksum(packed[4:end]) + packed[end + 1 :]


def _lz4_descriptor_end(packed: bytes) -> int:
    flags = packed[4]
    return 6 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)


def _header_checksum(descriptor: bytes) -> bytes:
    return bytes(((_xxh32_short(descriptor) >> 8) & 0xFF,))


def _xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes, which is all that a frame header has."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
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


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_DEFAULT_LEVEL if level is None else level).compress(data)


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    """All frames. One cut short without a content size gives what is there: the record count tells then."""
    import zstandard

    out = _Bounded(max_bytes, 4 * len(data))
    try:
        declared = zstandard.frame_content_size(data)
        _check_zstd_size(declared, len(data), max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        reader = decompressor.stream_reader(data, read_across_frames=True)
        while piece := reader.read(out.room()):
            out.add(piece)
    except zstandard.ZstdError as error:
        raise UnreadableCompression(f"zstd: {error}") from None
    if out.tell() < declared:
        raise UnreadableCompression(f"zstd: {out.tell()} bytes where the frame declares {declared}")
    return out.getvalue()


def _check_zstd_size(declared: int, packed: int, max_bytes: int) -> None:
    if declared > max_bytes:
        raise DecompressedTooLarge(f"the batch decompresses to {declared} bytes, more than {max_bytes}")
    if declared > packed * _ZSTD_MAX_RATIO:
        raise UnreadableCompression(f"zstd: {packed} bytes claim to hold {declared}")
