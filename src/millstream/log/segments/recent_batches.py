"""The positions of the last batches of the active segment.

Readers at the tail need no index and no I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

KEPT: Final = 64


class Span(NamedTuple):
    """A range of whole batches; `end_offset` is the first offset after it."""

    start: int
    end: int
    end_offset: int


class RecentBatches:
    """The last offsets of batches, and the positions where the batches begin.

    `SegmentIndex.note` appends to both arrays without a call: it runs for every batch.
    """

    __slots__ = ("last_offsets", "positions")

    def __init__(self) -> None:
        self.last_offsets = array("q")
        self.positions = array("q")

    def shrink(self) -> None:
        """Drop the older half."""
        del self.last_offsets[:KEPT], self.positions[:KEPT]

    def clear(self) -> None:
        del self.last_offsets[:], self.positions[:]

    def truncate(self, size: int) -> None:
        """Drop the batches from a position on."""
        keep = bisect_left(self.positions, size)
        del self.last_offsets[keep:], self.positions[keep:]

    def span(self, first: int, max_bytes: int, upto: int, at_least_one: bool, size: int) -> Span:
        """Return whole batches from a slot on; `size` is that of the file.

        See `Segment.span`.
        """
        last, positions = self.last_offsets, self.positions
        start, count = positions[first], len(last)
        stop = count if last[-1] < upto else bisect_left(last, upto, first)
        end = size if stop == count else positions[stop]
        if end - start > max_bytes:
            stop = max(bisect_right(positions, start + max_bytes, first) - 1, first)
            if stop == first and at_least_one:
                stop += 1
            end = size if stop == count else positions[stop]
        return Span(start, end, last[stop - 1] + 1 if stop > first else -1)
