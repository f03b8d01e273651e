"""Background work on logs: flushes, retention, checkpoints, file deletion, producer expiry.

One task looks for work that is due, in short slices so that the loop never stalls; everything that
waits for the disk runs in two threads. DeleteRecords awaits `log_starts_durable`, a produce that
must be on disk awaits `flush`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from millstream.log import truncation
from millstream.log.errors import StorageError
from millstream.log.flush.background import BackgroundFlushes
from millstream.log.management.blocking import Blocking
from millstream.log.management.checkpoint_writer import CheckpointWriter
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.segments.scheduled_deletion import ScheduledDeletion
from millstream.log.state import LogState

logger = logging.getLogger("millstream.log.housekeeping")

_SLICE_S: Final = 0.002
_TICK_S: Final = 1.0
_PROBE_S: Final = 1.0
_RELEASED_AT_ONCE: Final = 20


class HousekeepingSettings(NamedTuple):
    """Intervals in ms; the names are Kafka's."""

    retention_check_interval_ms: int = 300_000
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    producer_expiration_check_interval_ms: int = 600_000
    idle_release_interval_ms: int = 60_000


class Housekeeping:
    """Belongs to a broker: `run` is its task, for as long as the broker serves."""

    def __init__(
        self,
        manager: LogManager,
        settings: HousekeepingSettings = HousekeepingSettings(),  # noqa: B008 - immutable
        *,
        blocking: Blocking | None = None,
    ) -> None:
        self._manager = manager
        self._threads: ThreadPoolExecutor | None = None
        self.blocking = blocking or self._in_thread
        self._wake = asyncio.Event()
        self._probed = 0.0
        self._tasks: asyncio.TaskGroup | None = None
        checkpoints = self._checkpoints = CheckpointWriter(manager, self._block)
        self._flushes = BackgroundFlushes(
            manager, self._block, self.spawn, on_completed=checkpoints.note_recovery_point
        )
        self._due: list[list[Any]] = [
            [0.0, settings.retention_check_interval_ms, self.apply_retention],
            [0.0, settings.flush_offset_checkpoint_interval_ms, checkpoints.write_recovery_points],
            [0.0, settings.flush_start_offset_checkpoint_interval_ms, checkpoints.write_log_starts],
            [
                0.0,
                settings.high_watermark_checkpoint_interval_ms,
                checkpoints.write_high_watermarks,
            ],
            [0.0, settings.producer_expiration_check_interval_ms, self._expire_producers],
            [0.0, settings.idle_release_interval_ms, self._release_idle],
        ]

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        self._manager.queues.listen(self._wake.set)
        self._manager.failures.loop_thread.attach(loop)
        start = loop.time()
        for row in self._due:
            row[0] = start + row[1] / 1000
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while True:
                    await self._wait()
                    await self._urgent()
                    await self._periodic(loop.time())
        finally:
            self._tasks = None
            self._manager.queues.listen(None)
            if self._threads is not None:
                self._threads.shutdown(wait=True)
                self._threads = None

    async def _wait(self) -> None:
        """Wait for work, or a second.

        File deletion and flush.ms are due by the clock of the broker.
        """
        try:
            async with asyncio.timeout(_TICK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _urgent(self) -> None:
        manager = self._manager
        self._finish_truncations()
        await self._flushes.write_back()
        now_ms = manager.clock()
        self._flushes.start_timed(now_ms)
        self._flushes.start_queued()
        for item in manager.deletes.take_due(now_ms):
            await self._remove(item)
        now = asyncio.get_running_loop().time()
        await self._checkpoints.write_late_recovery_points(now)
        if manager.full.paths and now - self._probed >= _PROBE_S:
            self._probed = now
            await self._probe_full_directories()

    async def _periodic(self, now: float) -> None:
        for row in self._due:
            if now >= row[0]:
                row[0] = now + row[1] / 1000
                await row[2]()

    # -- threads and tasks

    async def _block(self, call: Callable[[], None]) -> None:
        """Run a call that waits for the disk, the way `blocking` says at this moment."""
        await self.blocking(call)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, "log-io")
        await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start other long work on logs, for as long as housekeeping runs."""
        if self._tasks is None:
            work.close()
            raise RuntimeError("housekeeping does not run")
        return self._tasks.create_task(work)

    # -- durability

    async def flush(self, log: LogState) -> None:
        """Return when everything appended before the call is durable, or truncated.

        Raises StorageError.
        """
        await self._flushes.flush(log)

    async def log_starts_durable(self) -> None:
        """Return when the present log starts survive any crash. Raises StorageError."""
        await self._checkpoints.log_starts_durable()

    # -- full disks

    async def _probe_full_directories(self) -> None:
        full = self._manager.full
        for path in list(full.paths):
            space: list[bool] = []
            await self.blocking(lambda at=path, results=space: results.append(full.has_space(at)))  # type: ignore[misc]
            full.probed(path, space=space == [True])

    def _finish_truncations(self) -> None:
        """Retry truncations and swaps that met a full disk.

        Their logs take nothing until they are done.
        """
        queues = self._manager.queues
        unfinished, queues.unfinished = queues.unfinished, {}
        for log in unfinished:
            try:
                if truncation.finish(log):
                    logger.info("%s: the change that a full disk interrupted is complete", log.tp)
                    self._manager.events.truncation_finished(log)
            except StorageError:
                continue  # it is queued again, or its directory is offline

    # -- retention, deletion, expiry

    async def apply_retention(self) -> None:
        """Delete the segments that retention allows, one log after the other."""
        now_ms = self._manager.clock()
        async for log in self._slices():
            if log.log_end_offset == log.log_start_offset and len(log.segments) == 1:
                continue
            try:
                log.delete_old_segments(now_ms)
            except StorageError:
                continue  # the log has reported it

    async def _slices(self) -> AsyncIterator[PartitionLog]:
        """Yield every log in service, with a pause for the loop every two milliseconds."""
        manager = self._manager
        until = time.perf_counter() + _SLICE_S
        for tp in list(manager.logs):
            log = manager.logs.get(tp)
            if log is not None:
                yield log
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + _SLICE_S

    async def _remove(self, item: ScheduledDeletion) -> None:
        try:
            await self.blocking(lambda: item.remove(self._manager.files))
        except OSError as error:
            self._manager.failures.disk_failed(
                item.log_dir, f"cannot delete {item.paths[0]}", error
            )

    async def _expire_producers(self) -> None:
        now_ms = self._manager.clock()
        async for log in self._slices():
            if log.producer_state.producers:
                log.producer_state.expire(now_ms, log.producer_expiration_ms)

    async def _release_idle(self) -> None:
        idle = self._manager.pool.idle()
        for start in range(0, len(idle), _RELEASED_AT_ONCE):
            self._manager.pool.release(idle[start : start + _RELEASED_AT_ONCE])
            await asyncio.sleep(0)
