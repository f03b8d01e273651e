"""Batches made of whole Arrow columns are those that the reference encoder makes
record by record.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.spark.sink.arrow_encode import (
    Columns,
    count_of,
    encode,
    encode_headers,
    sizes_of,
    split,
    stamp,
)
from millstream.wire.records.batch import (
    Record,
    build_batch,
    crc_matches,
    parse_header,
    read_records,
)

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3
).map(tuple)
TIMES = st.integers(-1, 1 << 42)
ROWS = st.lists(st.tuples(TIMES, BYTES, BYTES, HEADERS), min_size=1, max_size=40)
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns_of(rows: list[tuple]) -> Columns:
    headers = pa.array(
        [[{"key": k, "value": v} for k, v in row[3]] or None for row in rows], HEADER_TYPE
    )
    return Columns(
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
        encode_headers(headers),
        np.array([row[0] for row in rows], np.int64),
    )


def whole(encoded, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    head = stamp(
        encoded.head, encoded.body, producer_id=producer_id, producer_epoch=epoch, sequence=sequence
    )
    return bytes(head) + bytes(encoded.body)


@given(ROWS)
@settings(deadline=None)
def test_batch_equals_the_reference_byte_for_byte(rows: list[tuple]) -> None:
    (encoded,) = encode(columns_of(rows), np.array([0, len(rows)]))
    records = [Record(at, *row) for at, row in enumerate(rows)]
    assert whole(encoded) == build_batch(records)
    assert whole(encoded, 7, 3, 9) == build_batch(
        records, producer_id=7, producer_epoch=3, base_sequence=9, transactional=True
    )
    assert encoded.size <= 61 + int(sizes_of(columns_of(rows)).sum())


@given(ROWS, st.data())
@settings(deadline=None)
def test_every_batch_has_its_own_base_offset_and_time(
    rows: list[tuple], data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(rows))))
    bounds = sorted({0, len(rows)} | cuts)
    batches = list(encode(columns_of(rows), np.array(bounds)))
    assert [batch.count for batch in batches] == list(np.diff(bounds))
    for encoded, start, end in zip(batches, bounds, bounds[1:], strict=False):
        assert whole(encoded) == build_batch(
            [Record(at, *row) for at, row in enumerate(rows[start:end])]
        )


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_codecs_compress_compressible_batches(codec: int) -> None:
    rows = [(at, None, b"the same again " * 10, ()) for at in range(300)]
    (encoded,) = encode(columns_of(rows), np.array([0, 300]), codec=codec)
    batch = whole(encoded, 1, 0, 0)
    header = parse_header(batch)
    assert (header.codec, header.count, count_of(encoded.head)) == (codec, 300, 300)
    assert crc_matches(batch, 0, header) and len(batch) < 8000
    assert [record.value for record in read_records(batch, max_bytes=1 << 20)] == [
        row[2] for row in rows
    ]


def test_incompressible_batch_stays_uncompressed() -> None:
    (encoded,) = encode(columns_of([(1, None, b"x", ())]), np.array([0, 1]), codec=1)
    assert parse_header(whole(encoded)).codec == 0


def test_batch_without_keys_and_headers_equals_the_reference() -> None:
    values = pa.array([b"a", None, b""], pa.binary())
    (encoded,) = encode(Columns(None, values, None, np.zeros(3, np.int64)), np.array([0, 3]))
    assert whole(encoded) == build_batch(
        [Record(at, 0, None, v) for at, v in enumerate([b"a", None, b""])]
    )


def test_slices_of_columns_are_encoded() -> None:
    rows = [(at, b"k%d" % at, b"v%d" % at, (("h", b"%d" % at),)) for at in range(10)]
    full = columns_of(rows)
    part = Columns(full.keys.slice(4), full.values.slice(4), full.headers.slice(4), full.times[4:])
    (encoded,) = encode(part, np.array([0, 6]))
    assert whole(encoded) == build_batch([Record(at, *row) for at, row in enumerate(rows[4:])])


def test_batches_are_split_at_groups_and_sizes() -> None:
    sizes = np.array([10, 10, 10, 10, 500, 10, 10])
    assert split(sizes, [(5, 25), (7, 25)]).tolist() == [0, 2, 4, 5, 7]
    assert split(sizes, [(0, 1), (3, 1000), (3, 1), (7, 1000)]).tolist() == [0, 3, 7]
    assert split(sizes, [(2, 5), (7, 1000)]).tolist() == [0, 1, 2, 7]
    assert split(np.array([], np.int64), []).tolist() == [0]
