"""Decides whether the active segment takes another batch, or the log must roll."""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.log.config import LogConfig
from millstream.log.segments.segment import Segment

MAX_RELATIVE: Final = 0x7FFFFFFF


class Room(NamedTuple):
    """Limits within which every batch fits the active segment."""

    size: int  # of the segment, with the batch
    last_offset: int
    timestamp: int


NO_ROOM: Final = Room(-1, -1, -1)


class RollPolicy:
    """Compares batches with the limits of the topic: size, offsets, index entries and time.

    `room` is measured once for many batches, so that the common case compares three numbers.
    """

    __slots__ = ("_config", "room")

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self.room = NO_ROOM

    def update_config(self, config: LogConfig) -> None:
        self._config = config
        self.room = NO_ROOM

    def fits(
        self, segment: Segment, size: int, last_offset: int, timestamp: int, now_ms: int
    ) -> bool:
        """Return whether the segment takes a batch. Measure the room for the next ones."""
        if not self.has_room(segment, size, last_offset, timestamp, now_ms):
            return False
        if segment.size:
            self.room = self._measure(segment)
        return True

    def has_room(
        self, segment: Segment, size: int, last_offset: int, timestamp: int, now_ms: int
    ) -> bool:
        config, held = self._config, segment.size
        if held + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE:
            return False
        if not held:
            return True
        offsets, times = segment.index.entries()
        return (
            offsets < config.segment_index_bytes >> 3
            and times < config.segment_index_bytes // 12 - 1
            and segment.waited_ms(now_ms, timestamp) <= self._limit_ms(segment)
        )

    def _measure(self, segment: Segment) -> Room:
        config, first = self._config, segment.first_timestamp()
        if first < 0:
            return NO_ROOM  # the clock decides, not the records
        offsets, times = segment.index.entries()
        entries = min(config.segment_index_bytes >> 3, config.segment_index_bytes // 12 - 1) - max(
            offsets, times
        )
        # There is at most one entry per index interval. Keep two in reserve: the next may be due.
        indexed = segment.size + max(0, entries - 2) * config.index_interval_bytes
        return Room(
            min(config.segment_bytes, indexed),
            segment.base_offset + MAX_RELATIVE,
            first + self._limit_ms(segment),
        )

    def _limit_ms(self, segment: Segment) -> int:
        """Return how long the segment may stay open."""
        config = self._config
        limit = config.segment_ms
        if config.max_compaction_lag_ms < limit and config.compact:
            limit = config.max_compaction_lag_ms  # only closed segments are compacted (KIP-354)
        if config.segment_jitter_ms:
            limit -= config.jitter_ms(segment.names.directory, segment.base_offset)
        return limit
