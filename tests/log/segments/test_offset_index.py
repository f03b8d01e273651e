"""Offset indexes: Kafka's bytes, look-ups, truncation."""

from __future__ import annotations

import struct

import pytest

from millstream.log.segments.offset_index import OffsetIndex


def offsets() -> OffsetIndex:
    index = OffsetIndex(100)
    for offset, position in ((109, 500), (119, 900), (139, 1700)):
        index.append(offset, position)
    return index


def test_an_offset_index_has_kafkas_bytes() -> None:
    assert offsets().encode() == struct.pack(">IIIIII", 9, 500, 19, 900, 39, 1700)
    assert OffsetIndex.parse(offsets().encode(), 100).encode() == offsets().encode()
    assert offsets().encode(first=2) == struct.pack(">II", 39, 1700)


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        (0, 0),
        (100, 0),
        (108, 0),
        (109, 500),
        (118, 500),
        (119, 900),
        (138, 900),
        (139, 1700),
        (10**12, 1700),
    ],
)
def test_a_search_begins_at_or_before_the_offset(offset: int, position: int) -> None:
    assert offsets().position_of(offset) == position


@pytest.mark.parametrize(
    ("position", "floor"), [(0, 0), (499, 0), (500, 500), (1699, 900), (9999, 1700)]
)
def test_the_last_batch_that_begins_at_or_before_a_position(position: int, floor: int) -> None:
    assert offsets().position_floor(position) == floor


@pytest.mark.parametrize(
    ("offset", "left"), [(100, 0), (109, 0), (110, 1), (119, 1), (139, 2), (140, 3)]
)
def test_truncating_an_offset_index_drops_batches_that_hold_the_offset(
    offset: int, left: int
) -> None:
    index = OffsetIndex.parse(offsets().encode(), 100)
    index.truncate(offset)
    assert len(index) == left == index.written


def test_a_torn_entry_is_left_out_and_a_wrong_index_is_noticed() -> None:
    data = offsets().encode()
    assert len(OffsetIndex.parse(data[:-3], 100)) == 2
    assert offsets().fault(log_size=1701) is None
    assert "beyond" in str(offsets().fault(log_size=1700))
    padded = OffsetIndex.parse(data + bytes(16), 100)
    assert padded.fault(log_size=10_000) is not None
    assert offsets().increases()
    assert not padded.increases()
    assert OffsetIndex(5).fault(0) is None
