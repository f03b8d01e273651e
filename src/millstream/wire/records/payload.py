"""Encoding and decoding of the records in a version 2 batch, uncompressed.

A record is a varint length, then attributes, timestamp delta, offset delta, key, value and headers.
The decoder unrolls one- and two-byte varints, because a call per number would cost more than the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from millstream.wire.records.corrupt import CorruptBatch
from millstream.wire.varint import (
    encode_varint,
    encode_varlong,
    read_unsigned_varint,
    read_unsigned_varlong,
    read_varint,
)

# Length, attributes, two deltas, null key, null value, no headers: one byte each.
MIN_RECORD_SIZE: Final = 7

# Number of records decoded at a time.
CHUNK: Final = 4096

Header = tuple[str, bytes | None]
KeyInfo = tuple[int, int, bytes | None, bool]  # offset, timestamp, key, value is null


class KeyColumns(NamedTuple):
    """The keys of a batch, as columns.

    `inside` is whether all offsets are in the range of the batch header. Clients may write others.
    """

    offsets: list[int]
    keys: list[bytes | None]
    inside: bool


# The sum of two numbers below this fits into 64 bits.
_SAFE: Final = 1 << 62
_TWO_63: Final = 1 << 63
_TWO_64: Final = 1 << 64


class Record(NamedTuple):
    """A record as a user sees it. A timestamp of -1 means that the producer set none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Return the uncompressed body of a batch."""
    parts: list[bytes] = []
    for offset, timestamp, key, value, headers in records:
        head = b"\0%b%b" % (
            encode_varlong(timestamp - base_timestamp),
            encode_varint(offset - base_offset),
        )
        head += b"\1" if key is None else encode_varint(len(key)) + key
        tail = encode_headers(headers) if headers else b"\0"
        if value is None:
            parts += (encode_varint(len(head) + 1 + len(tail)), head, b"\1", tail)
        else:
            head += encode_varint(len(value))
            parts += (encode_varint(len(head) + len(value) + len(tail)), head, value, tail)
    return b"".join(parts)


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
    """Return all records of a body. `append_time` overrides the timestamps (LogAppendTime)."""
    return _all(_walk(body, count, base_offset, base_timestamp, append_time, True))


def decode_keys(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[KeyInfo]:
    """Like decode_records, without copying the values. The structure is still checked."""
    return _all(_walk(body, count, base_offset, base_timestamp, append_time, False))


def decode_key_columns(body: bytes, count: int, base_offset: int, last_offset: int) -> KeyColumns:
    """Like decode_keys, but return offsets and keys as columns."""
    infos = decode_keys(body, count, base_offset, 0, None)
    offsets = [info[0] for info in infos]
    inside = not offsets or (min(offsets) >= base_offset and max(offsets) <= last_offset)
    return KeyColumns(offsets, [info[2] for info in infos], inside)


def iter_records(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[list[Record]]:
    """Like decode_records, in chunks: a record of seven bytes can take 300 bytes in memory."""
    return _walk(body, count, base_offset, base_timestamp, append_time, True)


def iter_keys(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[list[KeyInfo]]:
    """Like decode_keys, in chunks."""
    return _walk(body, count, base_offset, base_timestamp, append_time, False)


def _all(chunks: Iterator[list[Any]]) -> list[Any]:
    out = next(chunks, [])
    for chunk in chunks:
        out += chunk
    return out


def check_count(body: bytes | memoryview, count: int) -> None:
    """Reject a count that the bytes cannot hold, before looping over it."""
    if count < 0:
        raise CorruptBatch(f"a batch of {count} records")
    if count * MIN_RECORD_SIZE > len(body):
        raise CorruptBatch(f"a batch of {count} records in {len(body)} bytes")


def _walk(
    body: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
    whole: bool,
) -> Iterator[list[Any]]:
    """Yield records (`whole`) or key infos. Long, because each of its five varints is unrolled.

    Slices never raise. A key or value is known to be complete because the fields end exactly at the
    end of the record, which is inside the body.
    """
    check_count(body, count)
    if not 0 <= base_offset < _SAFE:
        raise CorruptBatch(f"a base offset of {base_offset}")
    new = tuple.__new__
    timestamp = 0 if append_time is None else append_time
    wraps = not -_SAFE < base_timestamp < _SAFE
    headers: tuple[Header, ...] = ()
    value: bytes | None
    pos = start = 0
    end = len(body)
    for first in range(0, count, CHUNK):
        out: list[Any] = []
        append = out.append
        try:
            for _ in range(min(CHUNK, count - first)):
                start = pos
                number = body[pos]
                pos += 1
                if number > 127:
                    more = body[pos]
                    if more < 128:
                        number += (more << 7) - 128
                        pos += 1
                    else:
                        number, pos = read_unsigned_varint(body, start)
                stop = pos + (number >> 1)
                if stop > end or number & 1:
                    raise CorruptBatch(f"a record's length leads to byte {stop} of {end}", start)
                # Skip the attributes: no bit of them is defined.
                number = body[pos + 1]
                pos += 2
                if number > 127:
                    more = body[pos]
                    if more < 128:
                        number += (more << 7) - 128
                        pos += 1
                    else:
                        number, pos = read_unsigned_varlong(body, pos - 1)
                        wraps = wraps or number > _SAFE
                if append_time is None:
                    timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
                number = body[pos]
                pos += 1
                if number > 127:
                    more = body[pos]
                    if more < 128:
                        number += (more << 7) - 128
                        pos += 1
                    else:
                        number, pos = read_unsigned_varint(body, pos - 1)
                offset = base_offset + ((number >> 1) ^ -(number & 1))
                number = body[pos]
                pos += 1
                if number > 127:
                    more = body[pos]
                    if more < 128:
                        number += (more << 7) - 128
                        pos += 1
                    else:
                        number, pos = read_unsigned_varint(body, pos - 1)
                if number & 1:
                    key = None
                else:
                    more = pos + (number >> 1)
                    key = body[pos:more]
                    pos = more
                number = body[pos]
                pos += 1
                if number > 127:
                    more = body[pos]
                    if more < 128:
                        number += (more << 7) - 128
                        pos += 1
                    else:
                        number, pos = read_unsigned_varint(body, pos - 1)
                if number & 1:
                    value = None
                else:
                    more = pos + (number >> 1)
                    value = body[pos:more] if whole else b""
                    pos = more
                if body[pos]:
                    headers, pos = decode_headers(body, pos, stop)
                else:
                    headers = ()
                    pos += 1
                if pos != stop:
                    raise CorruptBatch(
                        f"a record's fields end at byte {pos}, its length says {stop}", start
                    )
                if whole:
                    append(new(Record, (offset, timestamp, key, value, headers)))
                else:
                    append((offset, timestamp, key, value is None))
        except (IndexError, ValueError) as error:
            reason = (
                "the body ends inside a record" if isinstance(error, IndexError) else str(error)
            )
            raise CorruptBatch(reason, start) from None
        yield _wrapped(out) if wraps and append_time is None else out
    if pos != end:
        raise CorruptBatch(f"{end - pos} bytes follow the last of {count} records", pos)


def decode_headers(body: bytes, pos: int, stop: int) -> tuple[tuple[Header, ...], int]:
    start = pos
    count, pos = read_varint(body, pos)
    if count < 0 or count > stop - pos:
        raise CorruptBatch(f"{count} headers in {stop - pos} bytes", start)
    headers: list[Header] = []
    for _ in range(count):
        size, pos = read_varint(body, pos)
        if size < 0 or pos + size > stop:
            raise CorruptBatch(f"a header name of {size} bytes, {stop - pos} are left", pos)
        # Kafka treats names as text, but nothing checks that they are UTF-8: keep invalid bytes.
        name = body[pos : pos + size].decode("utf-8", "surrogateescape")
        pos += size
        size, pos = read_varint(body, pos)
        if pos + size > stop:
            raise CorruptBatch(f"a header value of {size} bytes, {stop - pos} are left", pos)
        headers.append((name, None if size < 0 else body[pos : pos + size]))
        pos += max(size, 0)
    return tuple(headers), pos


def _wrapped(items: list[Any]) -> list[Any]:
    """Wrap timestamps to 64 bits, as in Java, so that a bad delta yields a writable timestamp."""
    for index, item in enumerate(items):
        timestamp = (item[1] + _TWO_63) % _TWO_64 - _TWO_63
        changed = (item[0], timestamp, *item[2:])
        items[index] = Record(*changed) if isinstance(item, Record) else changed
    return items
