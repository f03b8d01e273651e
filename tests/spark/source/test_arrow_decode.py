"""The vectorised decoder against the reference: the same records from any bytes."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.spark.source.arrow_decode import (
    WITH_HEADERS,
    Body,
    Columns,
    _decode_fast,
    arrow_schema,
    decode,
    decode_slowly,
    to_record_batch,
)
from millstream.wire.records.batch import Record, build_batch, parse_header
from millstream.wire.records.corrupt import CorruptBatch
from millstream.wire.records.layout import HEADER_SIZE

ALL = 1 << 62

small = st.none() | st.binary(max_size=20)
large = st.binary(min_size=60, max_size=300) | st.integers(8000, 20_000).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=70), small), max_size=3).map(tuple)
deltas = st.integers(0, 3) | st.integers(0, 100_000)
times = st.integers(-1, 2_000_000_000_000)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Consecutive batches, with gaps as compaction leaves them."""
    offset, out = draw(st.integers(0, 1 << 40)), []
    for _ in range(draw(st.integers(1, 4))):
        base, records = offset, []
        for _ in range(draw(st.integers(0, 12))):
            offset += draw(deltas)
            records.append(
                Record(offset, draw(times), draw(small | large), draw(small | large), draw(headers))
            )
            offset += 1
        more: dict[str, Any] = (
            {"timestamp_type": 1, "max_timestamp": draw(times)} if draw(st.booleans()) else {}
        )
        out.append(build_batch(records, base_offset=base, last_offset=max(offset, base), **more))
        offset += 1
    return out


def bodies_of(parts: list[bytes], *, together: bool) -> list[Body]:
    """Bodies as a fetch returns them (one buffer), or each decompressed separately."""
    whole = b"".join(parts)
    bodies, at = [], 0
    for part in parts:
        header = parse_header(part)
        if together:
            bodies.append(Body(header, whole, at + HEADER_SIZE, at + len(part)))
        else:
            bodies.append(Body(header, part[HEADER_SIZE:], 0, len(part) - HEADER_SIZE))
        at += len(part)
    return bodies


def plain(columns: Columns) -> list[list[Any]]:
    kept = [columns.offsets, columns.timestamps, columns.timestamp_types]
    kept += [columns.keys.to_pylist(), columns.values.to_pylist()]
    return [list(column) for column in kept] + [columns.headers and columns.headers.to_pylist()]


@settings(deadline=None)
@given(batches(), st.booleans(), st.booleans())
def test_fast_and_slow_path_read_the_same(
    parts: list[bytes], together: bool, include_headers: bool
):
    bodies = bodies_of(parts, together=together)
    fast = _decode_fast(bodies, 0, ALL, include_headers)
    assert plain(fast) == plain(decode_slowly(bodies, 0, ALL, include_headers))


@settings(deadline=None)
@given(batches(), st.data())
def test_only_offsets_of_the_range_are_kept(parts: list[bytes], data: st.DataObject):
    bodies = bodies_of(parts, together=True)
    first, last = bodies[0].header.base_offset, bodies[-1].header.last_offset
    start = data.draw(st.integers(first, last))
    end = data.draw(st.integers(start, last + 1))
    fast = _decode_fast(bodies, start, end, True)
    assert plain(fast) == plain(decode_slowly(bodies, start, end, True))
    assert all(start <= offset < end for offset in fast.offsets.tolist())


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 5))
def test_invalid_bytes_are_rejected_or_read_as_the_reference_does(body: bytes, count: int):
    header = parse_header(build_batch([Record(5, 0, None, b"")], base_offset=5))._replace(
        count=count
    )
    bodies = [Body(header, body, 0, len(body))]
    try:
        expected = decode_slowly(bodies, 0, ALL, True)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decode(bodies, 0, ALL, True)
        return
    assert plain(decode(bodies, 0, ALL, True)) == plain(expected)


@settings(deadline=None)
@given(batches(), st.data())
def test_damaged_byte_never_yields_more_than_the_reference(parts: list[bytes], data: st.DataObject):
    bodies = bodies_of(parts, together=False)
    body = data.draw(st.sampled_from(bodies))
    if not body.buffer:
        return
    at = data.draw(st.integers(0, len(body.buffer) - 1))
    damaged = bytearray(body.buffer)
    damaged[at] ^= data.draw(st.integers(1, 255))
    hurt = [body._replace(buffer=bytes(damaged))]
    try:
        expected = decode_slowly(hurt, 0, ALL, True)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decode(hurt, 0, ALL, True)
        return
    assert plain(decode(hurt, 0, ALL, True)) == plain(expected)


def test_record_with_an_offset_before_its_batch_is_rejected():
    records = [Record(0, 0, None, None, (("", None),)), Record(2, 0, None, None, (("a", b"b"),))]
    (body,) = bodies_of([build_batch(records)], together=False)
    damaged = bytearray(body.buffer)
    second = 1 + (damaged[0] >> 1) + 1  # behind its length
    damaged[second + 2] = 1  # offset delta -1
    damaged[-2] = 0x20  # a header that reaches beyond the record
    with pytest.raises(CorruptBatch):
        decode([body._replace(buffer=bytes(damaged))], 0, ALL, True)


def test_large_batches_with_equal_and_varying_record_sizes():
    sizes = [100] * 9000 + [os.urandom(1)[0] * 3 for _ in range(3000)]
    records = [
        Record(at, 1_700_000_000_000 + at, None if at % 7 else b"k", bytes(size))
        for at, size in enumerate(sizes)
    ]
    bodies = bodies_of([build_batch(records)], together=True)
    assert plain(_decode_fast(bodies, 0, ALL, False)) == plain(decode_slowly(bodies, 0, ALL, False))


def test_record_batch_has_spark_columns_and_valid_times():
    records = [
        Record(0, -1, None, b"v"),
        Record(1, (1 << 62), b"k", None, (("h", b"1"), ("n", None))),
    ]
    bodies = bodies_of([build_batch(records)], together=True)
    batch = to_record_batch(decode(bodies, 0, ALL, True), "t", 3, arrow_schema(WITH_HEADERS))
    assert batch.schema == arrow_schema(WITH_HEADERS)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist()[0] == -1000
    assert batch.column("headers").to_pylist() == [
        None,
        [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
    ]
    assert (batch.column("topic").to_pylist(), batch.column("partition").to_pylist()) == (
        ["t", "t"],
        [3, 3],
    )


def test_header_names_that_are_not_utf8_become_readable():
    name = b"\xff\xfea".decode("utf-8", "surrogateescape")
    bodies = bodies_of([build_batch([Record(0, 0, None, b"", ((name, b"x"),))])], together=True)
    assert decode(bodies, 0, ALL, True).headers.to_pylist() == [[{"key": "��a", "value": b"x"}]]
