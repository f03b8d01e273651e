"""Decode record batches to Arrow, many records at a time.

Only the lengths are followed record by record: each says where the next record begins. All other
fields are variable-length numbers, which numpy decodes for all records at once. Then one binary
Arrow array gets the bounds of all keys and values, and every fourth element of it is taken.
``wire``'s decoder is the reference: it reads all input that looks unusual here, and explains what
is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.spark.source.arrow_json import PROVEN, UNPROVEN, Plan, parse
from millstream.wire.records.batch import BatchHeader, CorruptBatch
from millstream.wire.records.payload import Record, decode_headers, decode_records

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Buffer = bytes | memoryview

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10
# Limits of a timestamp in microseconds; a producer may write any number.
MAX_TIMESTAMP_MS = (1 << 63) // 1000 - 1

HEADER_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADER_TYPE,
}
COLUMNS = tuple(name for name in TYPES if name != "headers")
WITH_HEADERS = tuple(TYPES)
# Runs of equally long records are found by comparing many at a time. After a failed search the next
# records are walked one by one.
SHORTEST_RUN = 64
WALK = 1024


NONE = np.empty(0, np.int64)


class Body(NamedTuple):
    """The records of one batch: bytes ``start`` to ``end`` of a buffer, decompressed."""

    header: BatchHeader
    buffer: Buffer
    start: int
    end: int


class Columns(NamedTuple):
    """Decoded records, one field per column; ``headers`` is None unless requested."""

    offsets: Ints
    timestamps: Ints
    timestamp_types: npt.NDArray[np.int32]
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None


class Odd(Exception):
    """Raised for bytes that the fast path does not understand."""


def arrow_schema(columns: Sequence[str] = COLUMNS, json: Plan | None = None) -> pa.Schema:
    """Return the schema of these columns as Spark expects it.

    ``json`` is the schema of parsed values.
    """
    types = TYPES if json is None else TYPES | {PROVEN: json.kind, UNPROVEN: json.kind}
    return pa.schema([(name, types[name]) for name in columns])


def to_record_batch(
    columns: Columns, topic: str, partition: int, schema: pa.Schema, json: Plan | None = None
) -> pa.RecordBatch:
    """Return the columns that the schema names, also those with one value for all rows."""
    count = len(columns.offsets)
    make: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: columns.keys,
        "value": lambda: columns.values,
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "partition": lambda: pa.array(np.full(count, partition, np.int32)),
        "offset": lambda: pa.array(columns.offsets),
        "timestamp": lambda: _timestamps(columns.timestamps),
        "timestampType": lambda: pa.array(columns.timestamp_types),
        "headers": lambda: columns.headers,
    }
    if json is not None:
        make[PROVEN] = lambda: parse(columns.values, json)
        make[UNPROVEN] = lambda: pa.nulls(count, json.kind)
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)


def _timestamps(millis: Ints) -> pa.Array:
    micros = np.clip(millis, -MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS) * 1000
    return pa.array(micros).view(TYPES["timestamp"])


def decode(bodies: Sequence[Body], start: int, end: int, include_headers: bool) -> Columns:
    """Return the records of these batches from offset ``start`` to ``end`` (exclusive)."""
    try:
        return _decode_fast(bodies, start, end, include_headers)
    except (Odd, IndexError, CorruptBatch):
        return decode_slowly(bodies, start, end, include_headers)


# ---------------------------------------------------------------- the reference


def decode_slowly(bodies: Sequence[Body], start: int, end: int, include_headers: bool) -> Columns:
    """Decode with ``wire``'s decoder, which raises CorruptBatch for invalid input."""
    records, types = [], []
    for body in bodies:
        header = body.header
        append_time = header.max_timestamp if header.log_append_time else None
        decoded = decode_records(
            bytes(body.buffer[body.start : body.end]),
            header.count,
            header.base_offset,
            header.base_timestamp,
            append_time,
        )
        kept = [record for record in decoded if start <= record.offset < end]
        records += kept
        types += [int(header.log_append_time)] * len(kept)
    return from_records(records, types, include_headers)


def from_records(records: Sequence[Record], types: Sequence[int], include_headers: bool) -> Columns:
    return Columns(
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp for record in records], np.int64),
        np.array(types, np.int32),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        headers_array([record.headers for record in records]) if include_headers else None,
    )


def headers_array(headers: Sequence[tuple[tuple[str, bytes | None], ...]]) -> pa.Array:
    """Return headers as Spark's connector has them: null for a record without headers."""
    at = [number for number, record_headers in enumerate(headers) if record_headers]
    return _header_lists(len(headers), at, [headers[number] for number in at])


def _header_lists(
    count: int, at: Sequence[int] | Ints, headers: Sequence[tuple[tuple[str, bytes | None], ...]]
) -> pa.Array:
    """Return an array of ``count`` lists; those not in ``at`` are null."""
    if not len(at):
        return pa.nulls(count, HEADER_TYPE)
    sizes = np.zeros(count, np.int32)
    sizes[at] = [len(record_headers) for record_headers in headers]
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    names = pa.array(
        [_readable(name) for record_headers in headers for name, _ in record_headers], pa.string()
    )
    values = pa.array(
        [value for record_headers in headers for _, value in record_headers], pa.binary()
    )
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE.value_type))
    return pa.ListArray.from_arrays(
        pa.array(ends), pairs, type=HEADER_TYPE, mask=pa.array(sizes == 0)
    )


def _readable(name: str) -> str:
    """Return a name as text: in Kafka names need not be UTF-8, but in Spark they are strings."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# ---------------------------------------------------------------- the fast path


def _decode_fast(bodies: Sequence[Body], start: int, end: int, include_headers: bool) -> Columns:
    buffer, spans = _join_buffers(bodies)
    counts = np.array([body.header.count for body in bodies], np.int64)
    begins, stops = _follow_lengths(buffer, spans, counts)
    data = np.frombuffer(buffer, np.uint8)
    # The first byte has the attributes, which are unused.
    time_deltas, at = _varints(data, begins + 1, MAX_VARLONG_BYTES)
    offset_deltas, at = _varints(data, at, MAX_VARINT_BYTES)
    # A negative delta would drop the record as one before the range.
    if (offset_deltas < 0).any():
        raise Odd
    key_sizes, key_at = _varints(data, at, MAX_VARINT_BYTES)
    key_end = key_at + np.maximum(key_sizes, 0)
    value_sizes, value_at = _varints(data, key_end, MAX_VARINT_BYTES)
    value_end = value_at + np.maximum(value_sizes, 0)
    _check_ends(data, value_end, stops)
    offsets = np.repeat([body.header.base_offset for body in bodies], counts) + offset_deltas
    kept = (offsets >= start) & (offsets < end)
    kept_at = None if kept.all() else np.flatnonzero(kept)
    keys, values = _slice(
        buffer, (key_at, key_end, value_at, value_end), key_sizes, value_sizes, kept_at
    )
    times, types = _times(bodies, counts, time_deltas)
    headers = _headers(buffer, value_end, stops, kept_at) if include_headers else None
    if kept_at is not None:
        offsets, times, types = offsets[kept_at], times[kept_at], types[kept_at]
    return Columns(offsets, times, types, keys, values, headers)


def _join_buffers(bodies: Sequence[Body]) -> tuple[Buffer, list[tuple[int, int]]]:
    """Return one buffer with all bodies, and their spans.

    Bodies that share a buffer are not copied.
    """
    first = bodies[0].buffer
    if all(body.buffer is first for body in bodies):
        return first, [(body.start, body.end) for body in bodies]
    spans, at = [], 0
    for body in bodies:
        spans.append((at, at + body.end - body.start))
        at = spans[-1][1]
    return b"".join(memoryview(body.buffer)[body.start : body.end] for body in bodies), spans


def _follow_lengths(
    buffer: Buffer, spans: Sequence[tuple[int, int]], counts: Ints
) -> tuple[Ints, Ints]:
    """Return where each record begins, after its length, and where it stops."""
    data = np.frombuffer(buffer, np.uint8)
    stops: list[Ints] = []
    for (pos, end), count in zip(spans, counts.tolist(), strict=True):
        while count:
            ends = _run(buffer, data, pos, min(end, len(buffer)), count)
            if not len(ends):
                ends = np.array(_walk(buffer, pos, min(count, WALK)), np.int64)
            stops.append(ends)
            count -= len(ends)
            pos = int(ends[-1])
        if pos != end:
            raise Odd
    return _begins(
        buffer,
        np.concatenate([*stops, np.empty(0, np.int64)]),
        [start for start, _ in spans],
        counts,
    )


def _run(buffer: Buffer, data: Bytes, pos: int, end: int, count: int) -> Ints:
    """Return the stops of the records from ``pos`` that are as long as the first.

    Return nothing if they are too few. Each record has its length where the previous one stops. So
    equal bytes at equal distances prove the whole run.
    """
    first = buffer[pos]
    second = buffer[pos + 1] if first > 127 else 0
    if second > 127:
        return NONE
    step = 1 + (first >> 1) if first < 128 else 2 + ((first & 127 | second << 7) >> 1)
    size = SHORTEST_RUN
    while True:
        limit = min(size, count, (end - pos) // step)
        starts = np.arange(pos, pos + limit * step, step)
        same = data[starts] == first
        if first > 127:
            same &= data[starts + 1] == second
        length = limit if same.all() else int(same.argmin())
        # The run ends here, or the records do.
        if length < size:
            return starts[:length] + step if length >= SHORTEST_RUN else NONE
        size *= 4


def _walk(buffer: Buffer, pos: int, count: int) -> list[int]:
    """Return the stops of the next records, one by one."""
    stops: list[int] = []
    append = stops.append
    for _ in range(count):
        number = buffer[pos]
        if number < 128:
            pos += 1 + (number >> 1)
        else:
            more = buffer[pos + 1]
            if more < 128:
                # Two bytes of length, and half of their value.
                pos += (number >> 1) + (more << 6) - 62
            else:
                pos = _long_length(buffer, pos)
        append(pos)
    return stops


def _long_length(buffer: Buffer, pos: int) -> int:
    number = shift = 0
    while True:
        byte = buffer[pos]
        pos += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return pos + (number >> 1)
        if shift >= 7 * MAX_VARINT_BYTES:
            raise Odd


def _begins(buffer: Buffer, stops: Ints, firsts: Sequence[int], counts: Ints) -> tuple[Ints, Ints]:
    """Return begins and stops.

    A record begins after the previous one, or with its batch; its length comes first.
    """
    starts = np.empty_like(stops)
    starts[1:] = stops[:-1]
    first_at = np.cumsum(counts) - counts
    filled = counts > 0
    starts[first_at[filled]] = np.array(firsts, np.int64)[filled]
    sizes, begins = _varints(np.frombuffer(buffer, np.uint8), starts, MAX_VARINT_BYTES)
    # An odd number is a negative length.
    if not np.array_equal(begins + sizes, stops):
        raise Odd
    return begins, stops


def _varints(data: Bytes, at: Ints, longest: int) -> tuple[Ints, Ints]:
    """Return the zigzag numbers at these positions, and the positions after them."""
    first = data[at]
    raw = (first & 127).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(first & 128)
    for step in range(1, longest):
        if not len(more):
            break
        byte = data[after[more]]
        raw[more] |= (byte & 127).astype(np.uint64) << np.uint64(7 * step)
        after[more] += 1
        more = more[byte >= 128]
    if len(more):
        raise Odd
    if longest == MAX_VARINT_BYTES:
        raw &= np.uint64(0xFFFFFFFF)
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), after


def _check_ends(data: Bytes, value_end: Ints, stops: Ints) -> None:
    """Check the bytes after each value.

    Headers follow, at least their number; a record without headers ends there.
    """
    if (value_end >= stops).any():
        raise Odd
    bare = data[value_end] == 0
    if (value_end[bare] + 1 != stops[bare]).any():
        raise Odd


def _slice(
    buffer: Buffer,
    edges: tuple[Ints, Ints, Ints, Ints],
    key_sizes: Ints,
    value_sizes: Ints,
    kept_at: Ints | None,
) -> tuple[pa.Array, pa.Array]:
    count = len(key_sizes)
    bounds = np.zeros(4 * count + 1, np.int32)
    for column, edge in enumerate(edges):
        bounds[1 + column :: 4] = edge
    pieces = pa.Array.from_buffers(
        pa.binary(), 4 * count, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    )
    at = np.arange(count, dtype=np.int32) if kept_at is None else kept_at.astype(np.int32)
    return (
        _take(pieces, 4 * at + 1, key_sizes if kept_at is None else key_sizes[kept_at]),
        _take(pieces, 4 * at + 3, value_sizes if kept_at is None else value_sizes[kept_at]),
    )


def _take(pieces: pa.Array, at: npt.NDArray[np.int32], sizes: Ints) -> pa.Array:
    null = sizes < 0
    if null.all():
        return pa.nulls(len(sizes), pa.binary())
    return pieces.take(pa.array(at, mask=null if null.any() else None))


def _times(
    bodies: Sequence[Body], counts: Ints, deltas: Ints
) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return times and timestamp types.

    With LogAppendTime all records of a batch have its append time.
    """
    kinds = np.array([body.header.log_append_time for body in bodies])
    times: Ints = np.repeat([body.header.base_timestamp for body in bodies], counts) + deltas
    if kinds.any():
        stamped = np.repeat(kinds, counts)
        times = np.where(
            stamped, np.repeat([body.header.max_timestamp for body in bodies], counts), times
        )
    return times, np.repeat(kinds.astype(np.int32), counts)


def _headers(buffer: Buffer, value_end: Ints, stops: Ints, kept_at: Ints | None) -> pa.Array:
    """Return the headers. They are decoded one by one, but only for records that have any."""
    begins = value_end if kept_at is None else value_end[kept_at]
    ends = stops if kept_at is None else stops[kept_at]
    at = np.flatnonzero(np.frombuffer(buffer, np.uint8)[begins])
    headers = [
        _record_headers(buffer, pos, stop)
        for pos, stop in zip(begins[at].tolist(), ends[at].tolist(), strict=True)
    ]
    return _header_lists(len(begins), at, headers)


def _record_headers(buffer: Buffer, pos: int, stop: int) -> tuple[tuple[str, bytes | None], ...]:
    try:
        headers, after = decode_headers(bytes(buffer[pos:stop]), 0, stop - pos)
    except ValueError:
        raise Odd from None
    if after != stop - pos or not headers:
        # The reference decoder explains what is wrong.
        raise Odd
    return headers
