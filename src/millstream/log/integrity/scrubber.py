"""The background scrub: reads all logs slowly, again and again, to find damage on the disk.

Client reads verify a batch only once in the life of a process, and only what they read. The scrub
verifies everything, so that damage is found while another replica, or a copy, still has the data.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.log.directories import file_names
from millstream.log.errors import DamagedBatch
from millstream.log.integrity.verification import check_part
from millstream.log.management.blocking import Blocking
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.segments.segment import Segment

logger = logging.getLogger("millstream.log.scrubber")

_CHUNK_BYTES: Final = 256 << 10
_FIRST_AFTER_S: Final = 600.0
_IDLE_S: Final = 60.0


class ScrubSettings(NamedTuple):
    """`bytes_per_s` of 0 turns the scrub off."""

    bytes_per_s: int
    interval_s: float


@dataclass(slots=True)
class ScrubCounters:
    """Counters since the broker started."""

    rounds: int = 0
    segments: int = 0
    bytes_verified: int = 0
    damaged_batches: int = 0
    damaged_indexes: int = 0
    missing_segments: int = 0

    @property
    def damaged(self) -> int:
        return self.damaged_batches + self.damaged_indexes + self.missing_segments


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
        """Run until cancelled."""
        await asyncio.sleep(min(_FIRST_AFTER_S, self._settings().interval_s))
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if self._settings().bytes_per_s:
                await self.scrub()
            await asyncio.sleep(max(began + self._settings().interval_s - loop.time(), _IDLE_S))

    async def scrub(self) -> None:
        """Run one round over all logs."""
        counters = self.counters
        before = (counters.bytes_verified, counters.damaged)
        for tp in list(self._manager.logs):
            log = self._manager.logs.get(tp)
            if log is not None:
                await self._scrub_log(log)
        counters.rounds += 1
        damaged = counters.damaged - before[1]
        logger.log(
            logging.ERROR if damaged else logging.INFO,
            "the scrub has verified %d bytes of %d partitions: %d are damaged",
            counters.bytes_verified - before[0],
            len(self._manager.logs),
            damaged,
        )

    async def _scrub_log(self, log: PartitionLog) -> None:
        segments = log.segments
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if log.failed is not None or self._is_gone(log, segment):
                return
            if following is not None:
                await self._scrub_segment(log, segment, None, following.base_offset)
            else:  # the chunk written so far
                await self._scrub_segment(log, segment, segment.size, log.log_end_offset)
            if following is not None and log.failed is None:
                await self._check_indexes(log, segment)

    def _is_gone(self, log: PartitionLog, segment: Segment) -> bool:
        return self._manager.logs.get(log.tp) is not log or segment not in log.segments

    async def _scrub_segment(
        self, log: PartitionLog, segment: Segment, end: int | None, next_base: int
    ) -> None:
        """Verify a segment up to `end`, or to the end of the file if that is None."""
        self.counters.segments += 1
        position, before, generation = 0, segment.base_offset, log.flushes.generation
        while position is not None and log.failed is None:
            for _ in range(2):  # retry a missing file once: its directory may just be renamed
                chunk = _Chunk(segment, position, before, end, next_base)
                await self._blocking(chunk.run)
                if chunk.missing is None:
                    break
            if self._is_gone(log, segment) or log.flushes.generation != generation:
                return  # removed by deletion, retention, compaction or truncation
            if chunk.missing is not None:
                self.counters.missing_segments += 1
                logger.error(
                    "%s: %s cannot be read: %s", log.tp, segment.path(file_names.LOG), chunk.missing
                )
                return
            self.counters.bytes_verified += chunk.size
            if chunk.damage is not None:
                self.counters.damaged_batches += 1
                self._manager.failures.damage_found(log, chunk.damage)
            position, before = chunk.position, chunk.before  # type: ignore[assignment]
            await self._throttle(chunk.size)

    async def _check_indexes(self, log: PartitionLog, segment: Segment) -> None:
        faults: list[str] = []

        def check() -> None:
            for kind in file_names.INDEXES:
                try:
                    fault = segment.index_files.fault_on_disk(kind)
                except OSError as error:
                    fault = str(error)
                if fault is not None:
                    faults.append(f"{segment.path(kind)}: {fault}")

        await self._blocking(check)
        if segment not in log.segments:
            return
        for fault in faults:
            self.counters.damaged_indexes += 1
            logger.error("%s: %s; the next start rebuilds it", log.tp, fault)

    async def _throttle(self, size: int) -> None:
        """Sleep to keep the rate, which may change at any time."""
        rate = self._settings().bytes_per_s
        await asyncio.sleep(size / rate if rate else _IDLE_S)


class _Chunk:
    """Some batches of a segment. `run` waits for the disk.

    `position` is None after the last batch.
    """

    def __init__(
        self, segment: Segment, position: int, before: int, end: int | None, next_base: int
    ) -> None:
        self._segment = segment
        self._end = end
        self._next_base = next_base
        self.position: int | None = position
        self.before = before
        self.size = 0
        self.damage: DamagedBatch | None = None
        self.missing: OSError | None = None

    def run(self) -> None:
        assert self.position is not None
        segment, start = self._segment, self.position
        try:
            if not start and not segment.files.exists(path := segment.path(file_names.LOG)):
                # The file may still be open, and readable until the broker closes it.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            size = self._end if self._end is not None else segment.size
            end, self.before, self.damage = check_part(
                segment, start, _CHUNK_BYTES, self.before, self._next_base, end=size
            )
        except OSError as error:
            self.missing = error
            return
        self.size = end - start
        self.position = end if start < end < size else None
