"""The records inside a version 2 batch, once decompressed: encoding them and reading them back.

A record is a varint length, then attributes, timestamp delta, offset delta, key, value and headers. The readers
walk plain bytes with the one- and two-byte varints unrolled, since a call per number would cost more than the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.wire.corrupt import CorruptBatch
from millstream.wire.varint import (
    encode_varint,
    read_unsigned_varint,
    read_unsigned_varlong,
    read_varint,
    read_varlong,
)

MIN_RECORD_SIZE: Final = (
    7  # a length, attributes, two deltas, null key, null value, no headers: one byte each
)

Header = tuple[str, bytes | None]
KeyInfo = tuple[int, int, bytes | None, bool]  # offset, timestamp, key, value is null

_SAFE_BASE: Final = 1 << 62
_TWO_63: Final = 1 << 63
_TWO_64: Final = 1 << 64


class Record(NamedTuple):
    """One message as a user sees it; a timestamp of -1 means that the producer gave none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> tuple[bytes, int]:
    """The body of a batch, uncompressed, and the number of records in it."""
    parts: list[bytes] = []
    count = 0
    for offset, timestamp, key, value, headers in records:
        head = b"\0" + encode_varint(timestamp - base_timestamp) + encode_varint(offset - base_offset)
        head += b"\1" if key is None else encode_varint(len(key)) + key
        head += b"\1" if value is None else encode_varint(len(value))
        tail = encode_headers(headers) if headers else b"\0"
        parts += (encode_varint(len(head) + len(value or b"") + len(tail)), head, value or b"", tail)
        count += 1
    return b"".join(parts), count


def encode_headers(headers: tuple[Header, ...]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        raw = name.encode("utf-8", "surrogateescape")
        parts += (encode_varint(len(raw)), raw)
        parts += (b"\1",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def decode_records(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    """Every record of a body; `append_time` overrides the timestamps of a LogAppendTime batch."""
    check_count(body, count)
    out: list[Record] = []
    append = out.append
    pos = 0
    start = 0
    end = len(body)
    timestamp = append_time if append_time is not None else 0
    try:
        for _ in range(count):
            start = pos
            size = body[pos]
            pos += 1
            if size > 127:
                size, pos = read_varint(body, start)
            else:
                size = (size >> 1) ^ -(size & 1)
            stop = pos + size
            if size < 0 or stop > end:
                raise CorruptBatch(f"a record of {size} bytes, {end - pos} are left", start)
            pos += 1  # attributes: none are defined
            delta = body[pos]
            pos += 1
            if delta > 127:
                delta, pos = read_varlong(body, pos - 1)
            else:
                delta = (delta >> 1) ^ -(delta & 1)
            if append_time is None:
                timestamp = base_timestamp + delta
            delta = body[pos]
            pos += 1
            if delta > 127:
                delta, pos = read_varint(body, pos - 1)
            else:
                delta = (delta >> 1) ^ -(delta & 1)
            size = body[pos]
            pos += 1
            if size > 127:
                size, pos = read_varint(body, pos - 1)
            else:
                size = (size >> 1) ^ -(size & 1)
            if size < 0:
                key = None
            else:
                key = body[pos : pos + size]
                pos += size
            size = body[pos]
            pos += 1
            if size > 127:
                size, pos = read_varint(body, pos - 1)
            else:
                size = (size >> 1) ^ -(size & 1)
            if size < 0:
                value = None
            else:
                value = body[pos : pos + size]
                pos += size
            headers: tuple[Header, ...] = ()
            if body[pos]:
                headers, pos = _decode_headers(body, pos, stop)
            else:
                pos += 1
            if pos != stop:
                raise CorruptBatch(f"a record ends at byte {pos} where its length says {stop}", start)
            append(Record(base_offset + delta, timestamp, key, value, headers))
    except (IndexError, ValueError) as error:
        raise CorruptBatch(_structure(error), start) from None
    if pos != end:
        raise CorruptBatch(f"{end - pos} bytes follow the last of {count} records", pos)
    if append_time is None:
        return (
            [r._replace(timestamp=_int64(r.timestamp)) for r in out]
            if _may_wrap(out, base_timestamp)
            else out
        )
    return out


def decode_keys(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[KeyInfo]:
    """Like decode_records, without copying values and headers (whose structure is still checked)."""
    check_count(body, count)
    out: list[KeyInfo] = []
    append = out.append
    pos = start = 0
    end = len(body)
    try:
        for _ in range(count):
            start = pos
            number = body[pos]
            pos += 1
            if number > 127:
                number, pos = _two_bytes_or_more(body, pos, number)
            stop = pos + (number >> 1)
            if stop > end or number & 1:
                raise CorruptBatch(_bad_size(number, end - pos), start)
            number = body[pos + 1]
            pos += 2
            if number > 127:
                number, pos = read_unsigned_varlong(body, pos - 1)
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
            number = body[pos]
            pos += 1
            if number > 127:
                number, pos = _two_bytes_or_more(body, pos, number)
            offset = base_offset + ((number >> 1) ^ -(number & 1))
            number = body[pos]
            pos += 1
            if number > 127:
                number, pos = _two_bytes_or_more(body, pos, number)
            if number & 1:
                key = None
            else:
                number >>= 1
                key = body[pos : pos + number]
                pos += number
            number = body[pos]
            pos += 1
            if number > 127:
                number, pos = _two_bytes_or_more(body, pos, number)
            null_value = number & 1
            if not null_value:
                pos += number >> 1
            if body[pos]:
                _, pos = _decode_headers(body, pos, stop)
            else:
                pos += 1
            if pos != stop:
                raise CorruptBatch(_bad_end(pos, stop), start)
            append((offset, timestamp, key, null_value == 1))
    except (IndexError, ValueError) as error:
        raise CorruptBatch(_structure(error), start) from None
    if pos != end:
        raise CorruptBatch(f"{end - pos} bytes follow the last of {count} records", pos)
    return out


def _two_bytes_or_more(body: bytes, pos: int, first: int) -> tuple[int, int]:
    """The unsigned varint whose first byte has just been read."""
    second = body[pos]
    if second < 128:
        return first & 127 | second << 7, pos + 1
    return read_unsigned_varint(body, pos - 1)


def _bad_size(number: int, left: int) -> str:
    return f"a record of {(number >> 1) ^ -(number & 1)} bytes where {left} are left"


def _bad_end(pos: int, stop: int) -> str:
    return f"a record ends at byte {pos} where its length says {stop}"


def check_count(body: bytes | memoryview, count: int) -> None:
    """Refuse a count that the bytes cannot hold before looping over it."""
    if count < 0:
        raise CorruptBatch(f"a batch of {count} records")
    if count * MIN_RECORD_SIZE > len(body):
        raise CorruptBatch(f"a batch of {count} records in {len(body)} bytes")


def _decode_headers(body: bytes, pos: int, stop: int) -> tuple[tuple[Header, ...], int]:
    start = pos
    count, pos = read_varint(body, pos)
    if count < 0 or count > stop - pos:
        raise CorruptBatch(f"{count} headers in {stop - pos} bytes", start)
    headers: list[Header] = []
    for _ in range(count):
        size, pos = read_varint(body, pos)
        if size < 0 or pos + size > stop:
            raise CorruptBatch(f"a header name of {size} bytes", pos)
        name = body[pos : pos + size].decode("utf-8", "surrogateescape")
        pos += size
        size, pos = read_varint(body, pos)
        value = None if size < 0 else body[pos : pos + size]
        pos += max(size, 0)
        if pos > stop:
            raise CorruptBatch(f"a header value of {size} bytes", pos)
        headers.append((name, value))
    return tuple(headers), pos


def _structure(error: Exception) -> str:
    return "the records end in the middle of one" if isinstance(error, IndexError) else str(error)


def _may_wrap(records: list[Record], base_timestamp: int) -> bool:
    return False


def _int64(value: int) -> int:
    """Timestamps wrap around as they do in Java, so that a lying delta never leaves 64 bits."""
    return (value + _TWO_63) % _TWO_64 - _TWO_63
