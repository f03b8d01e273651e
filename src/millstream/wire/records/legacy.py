"""Message sets of magic 0 and 1, the format of clients before 0.11: parsing, unwrapping, building.

A set is a sequence of messages: offset, size, CRC-32, magic, attributes, timestamp (magic 1 only),
key, value. Compression puts a whole set into the value of one wrapper message, whose offset is that
of the last inner message. Inner offsets are absolute in magic 0, and relative to the first in magic
1. A set may end in the middle of a message; that partial message is ignored and not an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from millstream.wire.records.compression import Codec, compress, decompress
from millstream.wire.records.corrupt import CorruptBatch, CorruptMessage
from millstream.wire.records.layout import (
    CODEC_MASK,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
)
from millstream.wire.records.payload import Record

Buffer = bytes | bytearray | memoryview

# Size of a message without key and value, by magic.
MIN_SIZE: Final = (14, 22)

_HEAD: Final = struct.Struct(">qiIbb")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class Message(NamedTuple):
    """An entry of a set: a message, or a wrapper of compressed messages."""

    offset: int
    magic: int
    attributes: int
    timestamp: int  # -1 in magic 0
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & LOG_APPEND_TIME != 0


def parse_messages(buf: bytes) -> Iterator[Message]:
    """Yield the entries of a set with verified checksums; wrappers are not unwrapped."""
    pos = 0
    while len(buf) - pos >= LOG_OVERHEAD:
        size = _INT.unpack_from(buf, pos + LENGTH_AT)[0]
        if size < MIN_SIZE[0]:
            raise CorruptMessage(f"a message of {size} bytes", pos)
        if len(buf) - pos - LOG_OVERHEAD < size:
            return
        yield _parse_message(buf, pos, pos + LOG_OVERHEAD + size)
        pos += LOG_OVERHEAD + size


def _parse_message(buf: bytes, pos: int, end: int) -> Message:
    offset, size, crc, magic, attributes = _HEAD.unpack_from(buf, pos)
    if magic not in (0, 1):
        raise CorruptMessage(f"magic {magic} in a set of old messages", pos)
    if size < MIN_SIZE[magic]:
        raise CorruptMessage(f"a message of {size} bytes", pos)
    if zlib.crc32(memoryview(buf)[pos + MAGIC_AT : end]) != crc:
        raise CorruptMessage("the CRC-32 of a message is wrong", pos)
    timestamp = -1
    at = pos + _HEAD.size
    if magic:
        timestamp = _LONG.unpack_from(buf, at)[0]
        at += 8
    key, at = _sized(buf, at, end - 4)
    value, at = _sized(buf, at, end)
    return Message(offset, magic, attributes, timestamp, key, value)


def _sized(buf: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read length-prefixed bytes that must end by `end`; a negative length is null."""
    size = _INT.unpack_from(buf, at)[0]
    at += 4
    if size < 0:
        return None, at
    if at + size > end:
        raise CorruptMessage(f"a key or value of {size} bytes where {end - at} are left", at)
    return buf[at : at + size], at + size


def inner_messages(wrapper: Message, *, max_bytes: int) -> Iterator[Message]:
    """Yield the messages in a compressed wrapper, with offsets and timestamps as written."""
    if wrapper.codec == Codec.ZSTD:
        raise CorruptBatch("zstd in a message of magic 0 or 1, which do not support it (KIP-110)")
    if wrapper.value is None:
        raise CorruptBatch("a compressed message without a value")
    message = None
    for message in parse_messages(
        decompress(wrapper.codec, wrapper.value, max_bytes=max_bytes, magic=wrapper.magic)
    ):
        if message.codec:
            raise CorruptBatch("a compressed message inside a compressed message")
        yield message
    if message is None:
        raise CorruptBatch("an empty compressed message")
    check_wrapper_offset(wrapper, message.offset)


def check_wrapper_offset(wrapper: Message, last: int) -> None:
    """Check the offset of a wrapper. Some versions of librdkafka write 0, so that is valid."""
    if wrapper.magic and wrapper.offset and wrapper.offset < last:
        raise CorruptBatch(
            f"a wrapper's offset {wrapper.offset} is below that of its last message, {last}"
        )


def unwrap(wrapper: Message, *, max_bytes: int) -> list[Message]:
    """Return the messages in a wrapper, with absolute offsets and effective timestamps."""
    inner = list(inner_messages(wrapper, max_bytes=max_bytes))
    base = wrapper.offset - inner[-1].offset if wrapper.magic and wrapper.offset else 0
    time = wrapper.timestamp if wrapper.log_append_time else None
    return [_resolved(message, base, time) for message in inner]


def _resolved(message: Message, base: int, append_time: int | None) -> Message:
    if append_time is not None and message.magic:
        return message._replace(offset=base + message.offset, timestamp=append_time)
    return message._replace(offset=base + message.offset) if base else message


def read_message_set(buf: Buffer, *, max_bytes: int) -> list[Record]:
    """Return the records of a set, as a consumer sees them. `max_bytes` limits each wrapper."""
    messages: list[Message] = []
    for entry in parse_messages(bytes(buf)):
        messages += unwrap(entry, max_bytes=max_bytes) if entry.codec else (entry,)
    return [
        Record(message.offset, message.timestamp, message.key, message.value)
        for message in messages
    ]


def build_message_set(
    records: Iterable[Record], magic: int, *, codec: int = 0, append_time: int | None = None
) -> bytes:
    """Build a set of these records, without their headers; with a codec, in one wrapper."""
    if codec == Codec.ZSTD:
        raise ValueError("messages of magic 0 and 1 cannot be compressed with zstd")
    flags = 0 if append_time is None or not magic else LOG_APPEND_TIME
    messages = bytearray()
    base = None
    last, latest = 0, -1
    for last, timestamp, key, value, _ in records:
        if base is None:
            base = last if codec and magic else 0
        time = timestamp if append_time is None else append_time
        latest = max(latest, time)
        messages += _encode(last - base, magic, flags, time, key, value)
    if not codec or not messages:
        return bytes(messages)
    return _encode(last, magic, flags | codec, latest, None, compress(codec, messages, magic=magic))


def _encode(
    offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytes:
    start = (
        struct.pack(">bbq", magic, attributes, timestamp)
        if magic
        else struct.pack(">bb", 0, attributes)
    )
    if key is None:
        start += b"\xff\xff\xff\xff"
    else:
        start += _INT.pack(len(key)) + key
    start += b"\xff\xff\xff\xff" if value is None else _INT.pack(len(value))
    tail = value or b""
    crc = zlib.crc32(tail, zlib.crc32(start))
    return struct.pack(">qiI", offset, 4 + len(start) + len(tail), crc) + start + tail
