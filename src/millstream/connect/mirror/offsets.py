"""From an offset in one cluster to the offset in the other where a group goes on: decisions over records that someone else reads. Pure.

Copies keep their order within a partition and each names the offset it was copied from, so there is one right answer: the first record that the group
has not read. It is found by bisection. What is read is committed and lies before the target's last stable offset; a copy that is not there yet comes
after it, so an answer never skips a record. Where the mirror has not yet copied all that the group has read, the answer is the end of what
there is, and a later pass moves it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from millstream.core.types import TopicPartition


class Row(NamedTuple):
    """A committed record of a partition; ``source`` is the offset it was copied from, None if it is no copy from that cluster.

    ``topic_id`` is that of the topic it was copied from, empty where the copy does not say.
    """

    offset: int
    source: int | None
    topic_id: str = ""


class Copy(NamedTuple):
    source: int
    target: int
    topic_id: str = ""


Read = Callable[[int], Sequence[Row]]
"""Some of the records at or after an offset, in order and without gaps between them; nothing at the end of what is committed."""


class Found(NamedTuple):
    """The first copy of what is wanted or later, and the last copy before it that was seen on the way."""

    first: Copy | None
    before: Copy | None


class Bounds(NamedTuple):
    """What of a partition can be read: from its first offset to its last stable offset."""

    begin: int
    end: int


def copies_from(read: Read, at: int, end: int) -> list[Copy]:
    """The next copies at or after an offset, as many as come together."""
    while at < end:
        rows = read(at)
        if not rows:
            return []
        found = [
            Copy(row.source, row.offset, row.topic_id)
            for row in rows
            if row.source is not None and row.offset < end
        ]
        if found:
            return found
        at = rows[-1].offset + 1
    return []


def find_copy(read: Read, bounds: Bounds, wanted: int, hint: Copy | None = None) -> Found:
    """The first copy of source offset ``wanted`` or a later one. A ``hint`` is a copy from before, of an earlier offset."""
    low, high = bounds
    first: Copy | None = None
    before: Copy | None = None
    if hint is not None and hint.source < wanted and low <= hint.target < high:
        low, before = hint.target + 1, hint
    # Copies before ``low`` are of earlier offsets; of those at or after ``high``, ``first`` is the first, and is late enough.
    while low < high:
        at = _guess(low, high, wanted, before if first is None else None)
        found = [one for one in copies_from(read, at, bounds.end) if one.target < high]
        if not found:
            high = at
            continue
        later = next((one for one in found if one.source >= wanted), None)
        earlier = found if later is None else found[: found.index(later)]
        first = later or first
        if not earlier:
            high = at
            if later is not None and later.source == wanted:
                break  # there is only one copy of it
            continue
        before = earlier[-1]
        low = before.target + 1
        if later is not None:
            break  # the two stand side by side
    return Found(first, before)


def _guess(low: int, high: int, wanted: int, before: Copy | None) -> int:
    """Where it is when nothing is missing in between; else the middle."""
    if before is not None:
        straight = before.target + wanted - before.source
        if low <= straight < high:
            return straight
    return (low + high) // 2


def last_copy(read: Read, bounds: Bounds) -> Copy | None:
    """The last copy within bounds: looked for from their end, further back each time."""
    step, high = 1, bounds.end
    while high > bounds.begin:
        at = max(bounds.begin, high - step)
        found: Copy | None = None
        while copies := copies_from(read, at, high):
            found = copies[-1]
            at = found.target + 1
        if found is not None:
            return found
        high, step = max(bounds.begin, high - step), step * 4
    return None


def forward(read: Read, bounds: Bounds, committed: int, hint: Copy | None = None) -> Found:
    """Where in the target a group goes on that has read a topic of the source up to ``committed``."""
    return find_copy(read, bounds, committed, hint)


def backward(read: Read, bounds: Bounds, committed: int) -> int | None:
    """Where in the target a group goes on that has read, in the source, copies of the target's own records up to ``committed``.

    ``read`` and ``bounds`` are of the source. None: it has read none that is still there.
    """
    following = copies_from(read, max(committed, bounds.begin), bounds.end)
    if following:
        return following[0].source
    last = last_copy(read, Bounds(bounds.begin, min(committed, bounds.end)))
    return None if last is None else last.source + 1


def first_own(read: Read, bounds: Bounds, at: int) -> int | None:
    """The first record at or after an offset that is no copy."""
    at = max(at, bounds.begin)
    while at < bounds.end:
        rows = read(at)
        if not rows:
            return None
        for row in rows:
            if row.source is None and at <= row.offset < bounds.end:
                return row.offset
        at = rows[-1].offset + 1
    return None


def moves(
    translated: Mapping[TopicPartition, int],
    theirs: Mapping[TopicPartition, int],
    told: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The offsets to commit in the target: only forward, and none that was committed there before.

    What was ``told`` once is not told again: whoever has set the offset back since has done so on purpose.
    """
    return {
        place: offset
        for place, offset in translated.items()
        if offset > theirs.get(place, -1) and offset > told.get(place, -1)
    }
