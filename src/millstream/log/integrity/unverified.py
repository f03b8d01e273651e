"""The bytes of a segment that have not been verified since this process opened it.

Appends are verified before they are written, so only bytes written by an earlier process are
suspect. Each byte is verified once, before it is first read.
"""

from __future__ import annotations

from typing import Final

WHOLE_FILE: Final = 1 << 62


class Unchecked:
    """The bytes below `end`, except for verified ranges. `short_of` is the size it should have."""

    __slots__ = ("_verified", "end", "short_of")

    def __init__(self, end: int = WHOLE_FILE, short_of: int = 0) -> None:
        self.end = end
        self.short_of = short_of
        # replaced, never changed: readers run in threads
        self._verified: tuple[tuple[int, int], ...] = ()

    def covers(self, start: int, end: int) -> bool:
        """Return whether a range was verified."""
        return any(first <= start and end <= last for first, last in self._verified)

    def add(self, start: int, end: int) -> None:
        """Add a verified range.

        Two threads at once may lose one of two ranges, which is then verified again.
        """
        merged = []
        for first, last in self._verified:
            if last < start or end < first:
                merged.append((first, last))
            else:
                start, end = min(first, start), max(last, end)
        self._verified = tuple(sorted([*merged, (start, end)]))
