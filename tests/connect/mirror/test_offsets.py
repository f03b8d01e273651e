"""Searches for copies by offset, against random partitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from hypothesis import given
from hypothesis import strategies as st

from millstream.connect.mirror.offsets import (
    Bounds,
    Copy,
    Row,
    advanced,
    backward,
    find_copy,
    first_original,
    last_copy,
)
from millstream.core.types import TopicPartition


class Partition:
    """A reader that returns a random number of rows at a time."""

    def __init__(self, rows: Sequence[Row], seed: int = 0) -> None:
        self.rows, self.reads = rows, 0
        self._dice = random.Random(seed)

    def __call__(self, at: int) -> Sequence[Row]:
        self.reads += 1
        return [row for row in self.rows if row.offset >= at][: self._dice.randint(1, 5)]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[Row], Bounds]:
    """Copies in order, with gaps on both sides (markers, compaction) and other
    records in between.
    """
    rows, offset, source = [], draw(st.integers(0, 5)), draw(st.integers(0, 5))
    begin = offset
    for _ in range(draw(st.integers(0, 30))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        if draw(st.booleans()):
            source += draw(st.sampled_from([0, 0, 1, 9]))
            rows.append(Row(offset, source))
            source += 1
        else:
            rows.append(Row(offset, None))
        offset += 1
    return rows, Bounds(begin, offset + draw(st.integers(0, 3)))


def copies(rows: Sequence[Row], holds: Callable[[Copy], bool] = lambda copy: True) -> list[Copy]:
    known = [Copy(row.source, row.offset) for row in rows if row.source is not None]
    return [copy for copy in known if holds(copy)]


class TestOffsets:
    @given(partitions(), st.integers(0, 80), st.integers(0, 99), st.data())
    def test_copy_is_found_in_any_partition(
        self, drawn: tuple[list[Row], Bounds], offset: int, seed: int, data: st.DataObject
    ) -> None:
        rows, bounds = drawn
        hint = data.draw(st.sampled_from([None, *copies(rows)]))
        search = find_copy(Partition(rows, seed), bounds, offset, hint)
        later = copies(rows, lambda copy: copy.source >= offset)
        assert search.first == (later[0] if later else None)
        if not later:
            assert search.before == (copies(rows)[-1] if copies(rows) else None)

    @given(partitions(), st.integers(0, 80), st.integers(0, 99))
    def test_last_copy_is_found(self, drawn: tuple[list[Row], Bounds], end: int, seed: int) -> None:
        rows, bounds = drawn
        bounds = Bounds(bounds.begin, min(bounds.end, end))
        before = copies(rows, lambda copy: copy.target < bounds.end)
        assert last_copy(Partition(rows, seed), bounds) == (before[-1] if before else None)

    @given(partitions(), st.integers(0, 90), st.integers(0, 99))
    def test_backward_translation_skips_and_repeats_nothing(
        self, drawn: tuple[list[Row], Bounds], committed: int, seed: int
    ) -> None:
        rows, bounds = drawn
        read = copies(rows, lambda copy: copy.target < committed)
        unread = copies(rows, lambda copy: copy.target >= committed)
        at = backward(Partition(rows, seed), bounds, committed)
        if at is None:
            assert not read and not unread
        else:
            assert all(copy.source < at for copy in read)
            assert all(copy.source >= at for copy in unread)

    @given(partitions(), st.integers(0, 80), st.integers(0, 99))
    def test_first_original_record_is_found(
        self, drawn: tuple[list[Row], Bounds], at: int, seed: int
    ) -> None:
        rows, bounds = drawn
        originals = [row.offset for row in rows if row.source is None and row.offset >= at]
        assert first_original(Partition(rows, seed), bounds, at) == (
            originals[0] if originals else None
        )

    def test_long_partition_takes_few_reads(self) -> None:
        log = Partition([Row(offset, offset * 3) for offset in range(100_000)])
        assert find_copy(log, Bounds(0, 100_000), 150_001).first == Copy(150_003, 50_001)
        assert log.reads < 20
        near = Partition([Row(offset + 7, offset) for offset in range(100_000)])
        assert find_copy(near, Bounds(0, 100_007), 60_000, Copy(50_000, 50_007)).first == Copy(
            60_000, 60_007
        )
        assert near.reads == 1, "without gaps the first guess is right"

    def test_offsets_only_advance_and_are_sent_once(self) -> None:
        a, b, c, d = (TopicPartition("t", number) for number in range(4))
        translated = {a: 5, b: 5, c: 5, d: 5}
        assert advanced(translated, {a: 4, b: 5, d: 2}, {d: 5}) == {a: 5, c: 5}
