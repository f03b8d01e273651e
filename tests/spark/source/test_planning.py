"""How ranges are split into tasks, without Spark or a broker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.types import TopicPartition
from millstream.spark.source.offsets import Range
from millstream.spark.source.planning import split


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 500), max_size=6), st.integers(1, 40), st.none() | st.integers(1, 100)
)
def test_split_keeps_every_offset_once_and_makes_enough_pieces(
    sizes: list[int], min_pieces: int, max_size: int | None
):
    ranges = [
        Range(TopicPartition("t", at), 10 * at, 10 * at + size) for at, size in enumerate(sizes)
    ]
    pieces = split(ranges, min_pieces, max_size)
    assert [(span.partition, at) for span in pieces for at in range(span.start, span.end)] == [
        (span.partition, at) for span in ranges for at in range(span.start, span.end)
    ]
    assert all(0 < span.size <= (max_size or span.size) for span in pieces)
    assert len(pieces) >= min(min_pieces, sum(sizes))
