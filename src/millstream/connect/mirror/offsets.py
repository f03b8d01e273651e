"""Translates an offset of one cluster into the offset of the other where a group continues. Pure.

Copies keep their order within a partition, and each names the offset it was copied from. So there
is one correct translation: the first record that the group has not read. Bisection finds it. Only
committed records before the target's last stable offset are read. Copies that have not arrived yet
come after it, so a translation never skips a record. If the mirror has not yet copied all that the
group has read, the translation is the end of the partition, and a later pass moves it forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from millstream.core.types import TopicPartition


class Row(NamedTuple):
    """A committed record of a partition.

    ``source`` is the offset it was copied from, None if it is not a copy from that cluster.
    ``topic_id`` is the id of the topic it was copied from, empty if the copy does not name it.
    """

    offset: int
    source: int | None
    topic_id: str = ""


class Copy(NamedTuple):
    source: int
    target: int
    topic_id: str = ""


Read = Callable[[int], Sequence[Row]]
"""Returns some records at or after an offset, in order and without gaps.

It returns nothing at the end of the committed records.
"""


class CopySearch(NamedTuple):
    """The first copy of an offset or a later one, and the last earlier copy that was seen."""

    first: Copy | None
    before: Copy | None


class Bounds(NamedTuple):
    """The readable part of a partition: from its first offset to its last stable offset."""

    begin: int
    end: int


def copies_from(read: Read, at: int, end: int) -> list[Copy]:
    """Return the next copies at or after an offset, from one read."""
    while at < end:
        rows = read(at)
        if not rows:
            return []
        copies = [
            Copy(row.source, row.offset, row.topic_id)
            for row in rows
            if row.source is not None and row.offset < end
        ]
        if copies:
            return copies
        at = rows[-1].offset + 1
    return []


def find_copy(read: Read, bounds: Bounds, offset: int, hint: Copy | None = None) -> CopySearch:
    """Find the first copy of a source offset or a later one.

    A ``hint`` is a known copy of an earlier offset.
    """
    low, high = bounds
    first: Copy | None = None
    before: Copy | None = None
    if hint is not None and hint.source < offset and low <= hint.target < high:
        low, before = hint.target + 1, hint
    # Copies before ``low`` are of earlier offsets. Of those at or after ``high``, ``first`` is the
    # first, and it is late enough.
    while low < high:
        at = _guess(low, high, offset, before if first is None else None)
        copies = [copy for copy in copies_from(read, at, bounds.end) if copy.target < high]
        if not copies:
            high = at
            continue
        later = next((copy for copy in copies if copy.source >= offset), None)
        earlier = copies if later is None else copies[: copies.index(later)]
        first = later or first
        if not earlier:
            high = at
            # An offset has only one copy.
            if later is not None and later.source == offset:
                break
            continue
        before = earlier[-1]
        low = before.target + 1
        # The two copies are adjacent.
        if later is not None:
            break
    return CopySearch(first, before)


def _guess(low: int, high: int, offset: int, before: Copy | None) -> int:
    """Return where a copy is if no offset is missing in between, or else the middle."""
    if before is not None:
        without_gaps = before.target + offset - before.source
        if low <= without_gaps < high:
            return without_gaps
    return (low + high) // 2


def last_copy(read: Read, bounds: Bounds) -> Copy | None:
    """Find the last copy within bounds, in growing steps from their end."""
    step, high = 1, bounds.end
    while high > bounds.begin:
        at = max(bounds.begin, high - step)
        last: Copy | None = None
        while copies := copies_from(read, at, high):
            last = copies[-1]
            at = last.target + 1
        if last is not None:
            return last
        high, step = max(bounds.begin, high - step), step * 4
    return None


def backward(read: Read, bounds: Bounds, committed: int) -> int | None:
    """Return where a group continues in the target that has read copies of its records.

    It has read them in the source, up to ``committed``; ``read`` and ``bounds`` are of the source.
    None if it has read no copy that still exists.
    """
    following = copies_from(read, max(committed, bounds.begin), bounds.end)
    if following:
        return following[0].source
    last = last_copy(read, Bounds(bounds.begin, min(committed, bounds.end)))
    return None if last is None else last.source + 1


def first_original(read: Read, bounds: Bounds, at: int) -> int | None:
    """Return the first record at or after an offset that is not a copy."""
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


def advanced(
    translated: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    sent: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets to commit in the target: only forward.

    An offset that was ``sent`` once is not sent again. If it was reset since, that was on purpose.
    """
    return {
        partition: offset
        for partition, offset in translated.items()
        if offset > committed.get(partition, -1) and offset > sent.get(partition, -1)
    }
