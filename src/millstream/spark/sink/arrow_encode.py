"""Encode Arrow columns as record batches (version 2), whole columns at a time.

The numbers before and between keys and values have variable length. numpy encodes them for all
records at once. Then one ``binary_join_element_wise`` joins prefix, key, middle, value and headers
of every record. The data buffer of its result is the records section as it is sent to the broker.
``wire/records/payload.py`` is the reference; a test compares the two.

Batches from here have no producer yet: ``stamp`` sets the producer, the sequence and the checksum
when they are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.wire.records.batch import stamp_crc
from millstream.wire.records.compression import compress
from millstream.wire.records.layout import (
    COUNT_AT,
    FLAGS_AT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    PRODUCER,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
)

# A numpy array.
Array = Any

# Maximum size of length, attributes, time and offset deltas, key length and value length together.
MAX_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5
_NO_HEADERS, _NOTHING = b"\0", b""


@cache
def _constant(value: bytes) -> pa.BinaryScalar:
    """Return a binary scalar.

    It is not created at import: with its first value Arrow imports pandas, which takes each process
    half a second.
    """
    return pa.scalar(value, pa.binary())


class Columns(NamedTuple):
    """The records to send, in order.

    ``headers`` are encoded, with their count first; times are milliseconds.
    """

    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    headers: pa.BinaryArray | None
    times: Array

    def take(self, rows: Array) -> Columns:
        indices = pa.array(rows)
        keys = None if self.keys is None else self.keys.take(indices)
        headers = None if self.headers is None else self.headers.take(indices)
        return Columns(keys, self.values.take(indices), headers, self.times[rows])


class Encoded(NamedTuple):
    """One batch: the header (61 bytes, not yet stamped), its records, and their number."""

    head: bytes
    body: memoryview | bytes
    count: int  # type: ignore[assignment]  # hides tuple.count

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)


def sizes_of(columns: Columns) -> Array:
    """Return the maximum size of each record."""
    sizes = _lengths(columns.values).clip(0).astype(np.int64) + MAX_OVERHEAD
    if columns.keys is not None:
        sizes += _lengths(columns.keys).clip(0)
    sizes += 1 if columns.headers is None else _lengths(columns.headers)
    return sizes


def split(sizes: Array, groups: Sequence[tuple[int, int]]) -> Array:
    """Return the bounds of batches, the end included.

    Groups are pairs of their end and the maximum bytes of a batch. A batch belongs to one group,
    and is full if the next record would exceed that size.
    """
    ends = np.cumsum(sizes)
    starts = [0]
    for group_end, batch_bytes in groups:
        start = starts[-1]
        while start < group_end:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + batch_bytes, side="right"))
            start = min(max(stop, start + 1), group_end)
            starts.append(start)
    return np.asarray(starts, np.int64)


def encode(
    columns: Columns, bounds: Array, *, codec: int = 0, level: int | None = None
) -> Iterator[Encoded]:
    """Yield one batch for each pair of neighbours in ``bounds``."""
    if len(bounds) < 2:
        return
    firsts, counts = bounds[:-1], np.diff(bounds)
    base_times = columns.times[firsts]
    last_times = np.maximum.reduceat(columns.times, firsts)
    records = _join(columns, firsts, counts, base_times)
    offsets = np.frombuffer(records.buffers()[1], np.int32)[bounds + records.offset]
    data = memoryview(records.buffers()[2] or b"")
    for index, count in enumerate(counts.tolist()):
        body: memoryview | bytes = data[int(offsets[index]) : int(offsets[index + 1])]
        used = 0
        if codec:
            packed = compress(codec, body, level)
            if len(packed) < len(body):
                body, used = packed, codec
        yield Encoded(
            _head(len(body), used, count, int(base_times[index]), int(last_times[index])),
            body,
            count,
        )


def stamp(
    head: bytes, body: memoryview | bytes, *, producer_id: int, producer_epoch: int, sequence: int
) -> bytearray:
    """Return the header with producer and checksum; transactional if there is a producer."""
    stamped = bytearray(head)
    if producer_id >= 0:
        stamped[FLAGS_AT] |= TRANSACTIONAL
    PRODUCER.pack_into(stamped, PRODUCER_ID_AT, producer_id, producer_epoch, sequence)
    stamp_crc(stamped, body)
    return stamped


def count_of(head: bytes | memoryview) -> int:
    """Return the number of records of a batch, from its header."""
    return int(struct.unpack_from(">i", head, COUNT_AT)[0])


def encode_headers(column: pa.ListArray) -> pa.BinaryArray:
    """Encode a column of lists of (key, value) as the end of each record: count, then headers."""
    counts = (
        pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    flat = column.flatten()
    keys, values = (as_binary(pc.struct_field(flat, [field])) for field in (0, 1))
    if keys.null_count:
        raise ValueError("a header without a key")
    joined = pc.binary_join_element_wise(
        _varints(_lengths(keys)),
        keys,
        _varints(_lengths(values)),
        values,
        _constant(_NOTHING),
        null_handling="replace",
        null_replacement=b"",
    )
    bounds = np.concatenate(([0], np.cumsum(counts)))
    inner = np.frombuffer(joined.buffers()[1], np.int32)[bounds]
    bytes_of_rows = pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(inner.tobytes()), joined.buffers()[2]]
    )
    return pc.binary_join_element_wise(_varints(counts), bytes_of_rows, _constant(_NOTHING))


def as_binary(column: pa.Array) -> pa.BinaryArray:
    """Convert strings and large binaries to plain binary."""
    if pa.types.is_binary(column.type):
        return column
    return pc.cast(column, pa.binary())


def _head(body_bytes: int, codec: int, count: int, base_time: int, last_time: int) -> bytes:
    length = HEADER_SIZE - LOG_OVERHEAD + body_bytes
    return HEADER.pack(
        0, length, -1, MAGIC, 0, codec, count - 1, base_time, last_time, -1, -1, -1, count
    )


def _join(columns: Columns, firsts: Array, counts: Array, base_times: Array) -> pa.BinaryArray:
    """Return all records joined. The data buffer of the result holds nothing else."""
    key_sizes = None if columns.keys is None else _lengths(columns.keys)
    value_sizes = _lengths(columns.values)
    rows = len(value_sizes)
    times = _zigzag(columns.times - np.repeat(base_times, counts))
    deltas = (
        np.arange(rows, dtype=np.uint32) - np.repeat(firsts.astype(np.uint32), counts)
    ) << np.uint32(1)
    keys = np.ones(rows, np.uint32) if key_sizes is None else _zigzag(key_sizes)
    values = _zigzag(value_sizes)
    inside = [times, deltas, keys]
    widths = [_widths(numbers) for numbers in inside]
    value_widths = _widths(values)
    lengths = 1 + widths[0] + widths[1] + widths[2] + value_widths + value_sizes.clip(0)
    if key_sizes is not None:
        lengths += key_sizes.clip(0)
    lengths += 1 if columns.headers is None else _lengths(columns.headers)
    prefix = _prefixes(_zigzag(lengths), inside, widths)
    middle = _varints_of(values, value_widths)
    keyed = [] if columns.keys is None else [columns.keys]
    return pc.binary_join_element_wise(
        prefix,
        *keyed,
        middle,
        columns.values,
        _constant(_NO_HEADERS) if columns.headers is None else columns.headers,
        _constant(_NOTHING),
        null_handling="replace",
        null_replacement=b"",
    )


# ---- variable-length numbers, for all rows at once ----


def _lengths(column: pa.Array) -> Array:
    """Return the length of each value, -1 for null."""
    lengths = pc.binary_length(column)
    return (lengths.fill_null(-1) if lengths.null_count else lengths).to_numpy(zero_copy_only=False)


def _zigzag(numbers: Array) -> Array:
    """Convert signed numbers to unsigned ones, in 32 bits if they fit.

    Half the bytes are twice as fast.
    """
    if numbers.dtype == np.int32:
        return ((numbers << 1) ^ (numbers >> 31)).view(np.uint32)
    wide = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    return wide.astype(np.uint32) if not len(wide) or int(wide.max()) < 1 << 32 else wide


def _widths(numbers: Array) -> Array:
    """Return the number of bytes that each number takes."""
    widths = np.ones(len(numbers), np.int32)
    largest = int(numbers.max()) if len(numbers) else 0
    limit = 1 << 7
    while limit <= largest:
        widths += numbers >= numbers.dtype.type(limit)
        limit <<= 7
    return widths


def _prefixes(lengths: Array, inside: list[Array], widths: list[Array]) -> pa.BinaryArray:
    """Encode length, attributes (always 0) and the numbers up to the key."""
    length_widths = _widths(lengths)
    offsets = _offsets(length_widths + 1 + sum(widths))
    out = np.zeros(int(offsets[-1]), np.uint8)
    at = offsets[:-1].astype(np.intp)
    _put(out, at, lengths, length_widths)
    at = at + length_widths + 1
    for numbers, width in zip(inside, widths, strict=True):
        _put(out, at, numbers, width)
        at = at + width
    return _binary(offsets, out)


def _varints(numbers: Array) -> pa.BinaryArray:
    zigzag = _zigzag(np.asarray(numbers))
    return _varints_of(zigzag, _widths(zigzag))


def _varints_of(numbers: Array, widths: Array) -> pa.BinaryArray:
    offsets = _offsets(widths)
    out = np.zeros(int(offsets[-1]), np.uint8)
    _put(out, offsets[:-1].astype(np.intp), numbers, widths)
    return _binary(offsets, out)


def _put(out: Array, at: Array, numbers: Array, widths: Array) -> None:
    """Write seven bits per byte, lowest first; the top bit says that more follow."""
    longer = widths > 1
    low = numbers.astype(np.uint8)
    low &= np.uint8(0x7F)
    low |= longer.view(np.uint8) << np.uint8(7)
    out[at] = low
    rows: Any = np.flatnonzero(longer)
    if len(rows) == len(numbers):
        rows = slice(None)
    index = 1
    while isinstance(rows, slice) or len(rows):
        bits = (numbers[rows] >> numbers.dtype.type(7 * index)).astype(np.uint8)
        bits &= np.uint8(0x7F)
        more = widths[rows] > index + 1
        bits |= more.view(np.uint8) << np.uint8(7)
        out[at[rows] + index] = bits
        rows = np.flatnonzero(more) if isinstance(rows, slice) else rows[more]
        index += 1


def _offsets(widths: Array) -> Array:
    offsets = np.zeros(len(widths) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    return offsets


def _binary(offsets: Array, data: Array) -> pa.BinaryArray:
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
