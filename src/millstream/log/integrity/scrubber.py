"""The background scrub: reads all logs slowly, again and again, to find what has rotted on the disk.

Reads of clients verify a batch only once in the life of a process, and only what they read. The scrub
verifies everything, so that damage is found while another replica, or a copy, still has the data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.log.directories import file_names
from millstream.log.errors import DamagedBatch
from millstream.log.housekeeping import Blocking
from millstream.log.integrity.verification import check_part
from millstream.log.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.segments.segment import Segment

logger = logging.getLogger("millstream.log.scrubber")

_PART: Final = 256 << 10
_FIRST_AFTER_S: Final = 600.0
_IDLE_S: Final = 60.0


class ScrubSettings(NamedTuple):
    """`bytes_per_s` of 0 turns the scrub off."""

    bytes_per_s: int
    interval_s: float


@dataclass(slots=True)
class ScrubCounters:
    """What the scrub has done since the broker started."""

    rounds: int = 0
    segments: int = 0
    bytes_verified: int = 0
    damaged_batches: int = 0
    damaged_indexes: int = 0


class Scrubber:
    """Belongs to a broker: `run` is its task. `blocking` runs a call in a thread."""

    def __init__(
        self, manager: LogManager, settings: Callable[[], ScrubSettings], blocking: Blocking
    ) -> None:
        self._manager = manager
        self._settings = settings
        self._blocking = blocking
        self.counters = ScrubCounters()

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.sleep(min(_FIRST_AFTER_S, self._settings().interval_s))
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if self._settings().bytes_per_s:
                await self.scrub()
            await asyncio.sleep(max(began + self._settings().interval_s - loop.time(), _IDLE_S))

    async def scrub(self) -> None:
        """One round over all logs."""
        counters = self.counters
        before = (counters.bytes_verified, counters.damaged_batches + counters.damaged_indexes)
        for tp in list(self._manager.logs):
            log = self._manager.logs.get(tp)
            if log is not None:
                await self._scrub_log(log)
        counters.rounds += 1
        damaged = counters.damaged_batches + counters.damaged_indexes - before[1]
        logger.log(
            logging.ERROR if damaged else logging.INFO,
            "the scrub has verified %d bytes of %d partitions: %d places are damaged",
            counters.bytes_verified - before[0],
            len(self._manager.logs),
            damaged,
        )

    async def _scrub_log(self, log: PartitionLog) -> None:
        segments = log.segments
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            # The active segment is being written: what is flushed of it is verified with the next round, or when
            # it is closed.
            if following is None or log.failed is not None or segment not in log.segments:
                return
            await self._scrub_segment(log, segment, following.base_offset)

    async def _scrub_segment(self, log: PartitionLog, segment: Segment, next_base: int) -> None:
        self.counters.segments += 1
        position, before = 0, segment.base_offset
        while position is not None and log.failed is None:
            part = _Part(segment, position, before, next_base)
            await self._blocking(part.run)
            if part.gone:
                return  # retention or compaction took it away
            self.counters.bytes_verified += part.size
            if part.damage is not None:
                self.counters.damaged_batches += 1
                self._manager.damage_found(log, part.damage)
            position, before = part.position, part.before  # type: ignore[assignment]
            await self._rest(part.size)
        await self._check_indexes(log, segment)

    async def _check_indexes(self, log: PartitionLog, segment: Segment) -> None:
        faults: list[str] = []

        def look() -> None:
            for kind in file_names.INDEXES:
                try:
                    fault = segment.index_fault(kind)
                except OSError as error:
                    fault = str(error)
                if fault is not None:
                    faults.append(f"{segment.path(kind)}: {fault}")

        await self._blocking(look)
        if segment not in log.segments:
            return
        for fault in faults:
            self.counters.damaged_indexes += 1
            logger.error("%s: %s; the next start rebuilds it", log.tp, fault)

    async def _rest(self, size: int) -> None:
        """Keep to the rate, which may change at any time."""
        rate = self._settings().bytes_per_s
        await asyncio.sleep(size / rate if rate else _IDLE_S)


class _Part:
    """Some batches of a segment. `run` waits for the disk; `position` is None behind the last part."""

    def __init__(self, segment: Segment, position: int, before: int, next_base: int) -> None:
        self._segment = segment
        self._next_base = next_base
        self.position: int | None = position
        self.before = before
        self.size = 0
        self.damage: DamagedBatch | None = None
        self.gone = False

    def run(self) -> None:
        assert self.position is not None
        start = self.position
        try:
            end, self.before, self.damage = check_part(
                self._segment, start, _PART, self.before, self._next_base
            )
            size = self._segment.size
        except OSError:
            self.gone = True
            return
        self.size = end - start
        self.position = end if start < end < size else None
