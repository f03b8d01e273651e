"""Selects the log to clean next, and how much of it: Kafka's LogCleanerManager as pure functions.

A log is dirty from where the last round ended. It may be cleaned up to the first segment that is
active, undecided, not flushed, or younger than min.compaction.lag.ms; always by whole segments. The
dirtiest goes first, by the share of its cleanable bytes that are dirty, once that is above
min.cleanable.dirty.ratio or a record is older than max.compaction.lag.ms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from millstream.core.settings import LONG_MAX
from millstream.core.types import TopicPartition


class ClosedSegment(Protocol):
    """The facts about a segment. The times are read only if a setting needs them."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    def largest_timestamp(self) -> int: ...
    def first_timestamp(self) -> int: ...


class LogFacts(NamedTuple):
    """A compacted log at a moment.

    `segments` are the closed ones. `stable_end` is the smallest of the base offset of the active
    segment, the last stable offset and the recovery point. `cleaned_offset` is where the last round
    ended, or -1.
    """

    tp: TopicPartition
    segments: Sequence[ClosedSegment]
    active_base_offset: int
    log_start_offset: int
    log_end_offset: int
    stable_end: int
    cleaned_offset: int
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX


class Cleanable(NamedTuple):
    """The work that a round would do with a log."""

    tp: TopicPartition
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    min_dirty_ratio: float
    checkpoint_wrong: bool = False

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def due(self) -> bool:
        return self.dirty_bytes > 0 and (
            self.overdue_ms > 0 or self.dirty_ratio > self.min_dirty_ratio
        )


def measure(facts: LogFacts, now_ms: int) -> Cleanable:
    first_dirty, wrong = _first_dirty(facts)
    bases = [segment.base_offset for segment in facts.segments]
    dirty_from = max(bisect_right(bases, first_dirty) - 1, 0)
    bound = facts.stable_end
    if facts.min_compaction_lag_ms > 0:
        bound = min(bound, _first_young(facts, dirty_from, now_ms - facts.min_compaction_lag_ms))
    end_offset = _segment_start(bases, facts.active_base_offset, max(bound, first_dirty))
    dirty = [
        segment
        for segment in facts.segments[dirty_from:]
        if first_dirty < end_offset > segment.base_offset
    ]
    clean = facts.segments[: bisect_right(bases, first_dirty - 1)]
    return Cleanable(
        facts.tp,
        first_dirty,
        end_offset,
        sum(segment.size for segment in clean),
        sum(segment.size for segment in dirty),
        _overdue_ms(facts, dirty_from, now_ms),
        facts.min_cleanable_dirty_ratio,
        wrong,
    )


def choose(candidates: Iterable[Cleanable]) -> Cleanable | None:
    """Return the dirtiest log that is due, or None."""
    return max((c for c in candidates if c.due), key=lambda c: c.dirty_ratio, default=None)


def _first_dirty(facts: LogFacts) -> tuple[int, bool]:
    """Return the start of the dirty section, and whether the checkpoint is impossible.

    It is below the log start after deletions, or above the end after data loss. Then the whole log
    counts as dirty.
    """
    if facts.cleaned_offset < 0:
        return facts.log_start_offset, False
    if facts.log_start_offset <= facts.cleaned_offset <= facts.log_end_offset:
        return facts.cleaned_offset, False
    return facts.log_start_offset, True


def _first_young(facts: LogFacts, dirty_from: int, not_after_ms: int) -> int:
    """Return the base offset of the first dirty segment that min.compaction.lag.ms protects."""
    for segment in facts.segments[dirty_from:]:
        if segment.largest_timestamp() > not_after_ms:
            return segment.base_offset
    return facts.active_base_offset


def _segment_start(bases: Sequence[int], active_base: int, offset: int) -> int:
    """Return the base offset of the segment that holds the offset."""
    if offset >= active_base or not bases:
        return active_base
    return bases[max(bisect_right(bases, offset) - 1, 0)]


def _overdue_ms(facts: LogFacts, dirty_from: int, now_ms: int) -> int:
    """Return for how long max.compaction.lag.ms has been exceeded (KIP-354); 0 if it is not."""
    if facts.max_compaction_lag_ms == LONG_MAX:
        return 0
    times = [segment.first_timestamp() for segment in facts.segments[dirty_from:]]
    earliest = min((timestamp for timestamp in times if timestamp > 0), default=LONG_MAX)
    return max(0, now_ms - facts.max_compaction_lag_ms - earliest)
