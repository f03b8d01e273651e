"""Decides when a log is written back or flushed, and which of its flushes still count.

Every `writeback_bytes` the kernel is asked to start writing, so that dirty pages never accumulate
until it blocks the writer. Every `flush_bytes` the log is synced, with a snapshot of its producers:
the recovery point follows the end of the log, and recovery never has more than that to check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from millstream.core.settings import LONG_MAX
from millstream.log.segments.segment import Segment


class FlushThresholds(Protocol):
    """The settings of a broker that decide when a log is written back and flushed."""

    writeback_bytes: int
    flush_bytes: int


class FlushPlan:
    """The thresholds of one log, and the generation of its files."""

    __slots__ = (
        "_flushed_size",
        "_snapshot_size",
        "_thresholds",
        "attention_at",
        "flush_at",
        "generation",
        "parent_synced",
    )

    def __init__(self, thresholds: FlushThresholds, *, parent_synced: bool) -> None:
        self._thresholds = thresholds
        self.parent_synced = parent_synced
        # Grows with every truncation and relocation, so that an older flush does not count.
        self.generation = 0
        self.flush_at = LONG_MAX  # an offset: flush.messages
        self.attention_at = thresholds.writeback_bytes  # a size of the active segment
        self._flushed_size = 0
        self._snapshot_size = 0

    def begin_segment(self, size: int) -> None:
        """Start over: another segment is active, or the active one has another size."""
        self.attention_at = size + self._thresholds.writeback_bytes
        self._flushed_size = self._snapshot_size = size

    def interrupt(self) -> None:
        """Invalidate a running flush: the log is no longer what it syncs."""
        self.generation += 1

    def wants_flush(self, size: int) -> bool:
        """Return True once for every `flush_bytes` that are unsynced."""
        if size - self._flushed_size < self._thresholds.flush_bytes:
            return False
        self._flushed_size = size
        return True

    def wants_snapshot(self, size: int) -> bool:
        """Return True once when the appends since the last snapshot take long to replay."""
        if size - self._snapshot_size < self._thresholds.flush_bytes // 2:
            return False
        self._snapshot_size = size
        return True

    def writeback_job(self, segment: Segment) -> Callable[[], None] | None:
        """Return a call for a thread that starts writing out recent appends.

        It makes nothing durable.
        """
        step = self._thresholds.writeback_bytes
        begin, end = max(self.attention_at - step, 0), segment.size
        if end <= begin:
            return None
        self.attention_at = end + step
        return partial(segment.file().start_writeback, begin, end - begin)
