"""Offset, time and transaction indexes: Kafka's bytes, look-ups, truncation."""

from __future__ import annotations

import struct

import pytest

from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.time_index import TimeIndex, last_entry
from millstream.log.segments.transaction_index import AbortedTransaction


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
    [(0, 0), (100, 0), (108, 0), (109, 500), (118, 500), (119, 900), (138, 900), (139, 1700), (10**12, 1700)],
)
def test_a_search_begins_at_or_before_the_offset(offset: int, position: int) -> None:
    assert offsets().position_of(offset) == position


@pytest.mark.parametrize(("position", "floor"), [(0, 0), (499, 0), (500, 500), (1699, 900), (9999, 1700)])
def test_the_last_batch_that_begins_at_or_before_a_position(position: int, floor: int) -> None:
    assert offsets().position_floor(position) == floor


@pytest.mark.parametrize(("offset", "left"), [(100, 0), (109, 0), (110, 1), (119, 1), (139, 2), (140, 3)])
def test_truncating_an_offset_index_drops_batches_that_hold_the_offset(offset: int, left: int) -> None:
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


def times() -> TimeIndex:
    index = TimeIndex(100)
    for timestamp, offset in ((1000, 109), (1500, 119), (1400, 125), (2000, 139)):
        index.maybe_append(timestamp, offset)
    return index


def test_a_time_index_has_kafkas_bytes_and_only_growing_times() -> None:
    assert times().encode() == struct.pack(">qIqIqI", 1000, 9, 1500, 19, 2000, 39)
    assert times().last == (2000, 139)
    assert TimeIndex(7).last == (-1, 7)
    again = TimeIndex.parse(times().encode() + b"torn", 100)
    assert again.encode() == times().encode()
    assert again.last_timestamp == 2000


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(0, 100), (999, 100), (1000, 109), (1499, 109), (1500, 119), (9999, 139)]
)
def test_a_search_by_time_begins_at_or_before_it(timestamp: int, offset: int) -> None:
    assert times().offset_of(timestamp) == offset


def test_truncating_a_time_index_forgets_the_largest_time() -> None:
    index = times()
    index.truncate(139)
    assert index.last == (1500, 119)
    index.maybe_append(1600, 130)
    assert index.last == (1600, 130)
    index.truncate(0)
    assert len(index) == 0
    assert index.last_timestamp == -1


def test_the_last_entry_is_read_from_the_end_of_a_file() -> None:
    assert last_entry(times().encode()[-12:], 100) == (2000, 139)
    assert last_entry(b"", 100) == (-1, 100)


def test_a_transaction_index_has_kafkas_bytes() -> None:
    entries = [AbortedTransaction(7, 10, 20, 15), AbortedTransaction(8, 15, 30, 31)]
    data = transaction_index.encode(entries)
    assert data == struct.pack(">hqqqqhqqqq", 0, 7, 10, 20, 15, 0, 8, 15, 30, 31)
    assert transaction_index.parse(data) == entries
    assert transaction_index.parse(data[:-1]) == entries[:1]
    with pytest.raises(ValueError, match="version 1"):
        transaction_index.parse(struct.pack(">hqqqq", 1, 7, 10, 20, 15))


def test_a_search_for_aborted_transactions_stops_when_all_later_ones_began_later() -> None:
    entries = [AbortedTransaction(7, 10, 20, 15), AbortedTransaction(8, 15, 30, 31)]
    assert transaction_index.search(entries, 0, 12) == ([entries[0]], True)
    assert transaction_index.search(entries, 21, 40) == ([entries[1]], False)
    assert transaction_index.search(entries, 0, 100) == (entries, False)
    assert transaction_index.search(entries, 31, 100) == ([], False)
