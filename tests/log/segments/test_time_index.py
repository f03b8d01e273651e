"""Time indexes: Kafka's bytes, look-ups, truncation."""

from __future__ import annotations

import struct

import pytest

from millstream.log.segments.time_index import TimeIndex, last_entry


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
    ("timestamp", "offset"),
    [(0, 100), (999, 100), (1000, 109), (1499, 109), (1500, 119), (9999, 139)],
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
