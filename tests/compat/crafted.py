"""Record batches and old messages made field by field, so that every field can lie.

With no lie they are valid; ``batch`` is version 2, ``message`` magic 0 or 1. This is written apart
from ``wire/records/batch`` on purpose: a mistake there must not hide itself.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Sequence

from crc32c import crc32c

Pair = tuple[bytes | None, bytes | None]
Headers = Sequence[tuple[bytes, bytes | None]]

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
ONE: tuple[Pair, ...] = ((b"k", b"v"),)


def now_ms() -> int:
    return int(time.time() * 1000)


def varint(number: int) -> bytes:
    zigzag = ((number << 1) ^ (number >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    *,
    time_delta: int = 0,
    headers: Headers = (),
) -> bytes:
    body = b"\0" + varint(time_delta) + varint(offset_delta) + _field(key) + _field(value)
    body += varint(len(headers)) + b"".join(_field(name) + _field(data) for name, data in headers)
    return varint(len(body)) + body


def batch(
    pairs: Sequence[Pair] = ONE,
    *,
    base_offset: int = 0,
    attributes: int = 0,
    timestamp: int | None = None,
    max_timestamp: int | None = None,
    time_deltas: Sequence[int] | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    last_offset_delta: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    compress: Callable[[bytes], bytes] | None = None,
    body: bytes | None = None,
    extra_length: int = 0,
) -> bytes:
    """``producer`` is (producer id, epoch, base sequence). Whatever is not given is derived from
    ``pairs``.
    """
    deltas = time_deltas or [0] * len(pairs)
    first = now_ms() if timestamp is None else timestamp
    if body is None:
        body = b"".join(record(i, *pair, time_delta=deltas[i]) for i, pair in enumerate(pairs))
    if compress is not None:
        body = compress(body)
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        len(pairs) - 1 if last_offset_delta is None else last_offset_delta,
        first,
        first + max(deltas, default=0) if max_timestamp is None else max_timestamp,
        *producer,
        len(pairs) if count is None else count,
    )
    tail += body
    checksum = crc32c(tail) if crc is None else crc
    return (
        struct.pack(
            ">qiibI", base_offset, 9 + len(tail) + extra_length, leader_epoch, magic, checksum
        )
        + tail
    )


def idempotent(
    producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, value: bytes = b"v"
) -> bytes:
    return batch([(b"k", value)] * count, producer=(producer_id, epoch, sequence))


def message(
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    timestamp: int = 1000,
    attributes: int = 0,
    offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """One entry of a message set: offset, size, CRC-32, magic, attributes, timestamp (magic 1),
    key, value.
    """
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for data in (key, value):
        body += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    body = struct.pack(">I", zlib.crc32(body) if crc is None else crc) + body
    return struct.pack(">qi", offset, len(body)) + body


def codec_of(records: bytes) -> int:
    """The codec in the header of the first stored batch."""
    attributes: int = struct.unpack_from(">h", records, 21)[0]
    return attributes & 7


def codecs_of(records: bytes) -> set[int]:
    """The codecs of all whole batches."""
    found, position = set(), 0
    while position + 61 <= len(records):
        found.add(codec_of(records[position:]))
        position += 12 + int(struct.unpack_from(">i", records, position + 8)[0])
    return found


def base_offset_of(records: bytes) -> int:
    offset: int = struct.unpack_from(">q", records)[0]
    return offset
