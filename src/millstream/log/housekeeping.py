"""What happens to logs in the background: flushes, retention, checkpoints, file deletion, producer expiry.

One task looks at what is due, in short slices so that the loop never stalls; everything that waits for the disk runs
in two threads of its own. A produce that must be on disk before it is acknowledged (flush.messages) awaits `flush`,
which syncs once for all that wait (group commit); DeleteRecords awaits `log_starts_durable`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from millstream.log import truncation
from millstream.log.directories import file_names
from millstream.log.directories.log_directory import LogDir
from millstream.log.errors import StorageError
from millstream.log.flushing import FlushJob
from millstream.log.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.segments.scheduled_deletion import ScheduledDeletion
from millstream.log.state import LogState

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.002
_TICK_S: Final = 1.0
_PROBE_S: Final = 1.0
_RELEASED_AT_ONCE: Final = 20
_REST: Final = 8  # times as long as the last background write of a directory took
_POINTS_LATEST_S: Final = 5.0  # a recovery point that moved is in its checkpoint after this long

Blocking = Callable[[Callable[[], None]], Awaitable[None]]


class HousekeepingSettings(NamedTuple):
    """How often, in ms; the names are Kafka's."""

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
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._points_moved = False
        self._points_written = 0.0
        self._probed = 0.0
        self._flushing: dict[LogState, asyncio.Future[StorageError | None]] = {}
        self._flush_again: set[LogState] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._due: list[list[Any]] = [
            [0.0, settings.retention_check_interval_ms, self.apply_retention],
            [0.0, settings.flush_offset_checkpoint_interval_ms, self._checkpoint_recovery_points],
            [0.0, settings.flush_start_offset_checkpoint_interval_ms, self._checkpoint_log_starts],
            [0.0, settings.high_watermark_checkpoint_interval_ms, self._checkpoint_high_watermarks],
            [0.0, settings.producer_expiration_check_interval_ms, self._expire_producers],
            [0.0, settings.idle_release_interval_ms, self._release_idle],
        ]

    async def run(self) -> None:
        """Until cancelled."""
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
        """For a call, or a second (file deletion and flush.ms are due by the clock of the broker)."""
        try:
            async with asyncio.timeout(_TICK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _periodic(self, now: float) -> None:
        for row in self._due:
            if now >= row[0]:
                row[0] = now + row[1] / 1000
                await row[2]()

    async def _in_thread(self, call: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, "log-io")
        await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Other long work on logs, for as long as housekeeping runs."""
        if self._tasks is None:
            work.close()
            raise RuntimeError("housekeeping does not run")
        self._tasks.create_task(work)

    # -- flushing

    async def _urgent(self) -> None:
        manager = self._manager
        self._finish_cuts()
        await self._write_back()
        now_ms = manager.clock()
        for log in list(manager.queues.timed):
            if log.log_end_offset > log.recovery_point and now_ms - log.flushed_ms >= log.config.flush_ms:
                self._start_flush(log)
        self._start_flushes()
        for item in manager.deletes.take_due(now_ms):
            await self._remove(item)
        now = asyncio.get_running_loop().time()
        if self._points_moved and now - self._points_written >= _POINTS_LATEST_S:
            await self._checkpoint_recovery_points()
        if manager.full.paths and now - self._probed >= _PROBE_S:
            self._probed = now
            await self._probe_full_directories()

    async def _probe_full_directories(self) -> None:
        full = self._manager.full
        for path in list(full.paths):
            room: list[bool] = []
            await self.blocking(lambda at=path, found=room: found.append(full.has_room(at)))  # type: ignore[misc]
            full.probed(path, room=room == [True])

    def _finish_cuts(self) -> None:
        """Truncations and swaps that met a full disk: their logs take nothing until they are done."""
        queues = self._manager.queues
        unfinished, queues.unfinished = queues.unfinished, {}
        for log in unfinished:
            try:
                if truncation.finish(log):
                    logger.info("%s: what the full disk had interrupted is done", log.tp)
                    self._manager.events.truncation_finished(log)
            except StorageError:
                continue  # it is among the unfinished again, or its directory offline

    def _quiet(self, kind: str, log_dir: str) -> bool:
        return asyncio.get_running_loop().time() < self._quiet_until.get((kind, log_dir), 0.0)

    def _rest_after(self, kind: str, log_dir: str, began: float) -> None:
        """A disk that is slower than the appends is left alone for a while: the page cache takes the burst, and
        appends do not wait behind our own writes."""
        now = asyncio.get_running_loop().time()
        self._quiet_until[kind, log_dir] = now + _REST * (now - began)

    async def _write_back(self) -> None:
        queue = self._manager.queues.writeback
        for log in [log for log in queue if not self._quiet("writeback", log.log_dir)]:
            queue.pop(log, None)
            try:
                job = log.flushes.writeback_job(log.segment_list.active) if log.failed is None else None
            except OSError as error:
                log.failure("cannot read", error)
                continue
            if job is not None:
                began = asyncio.get_running_loop().time()
                await self.blocking(job)
                self._rest_after("writeback", log.log_dir, began)

    def _start_flushes(self) -> None:
        """What logs asked for; who waits for a flush calls `flush`."""
        queue = self._manager.queues.flush
        for log in [log for log in queue if log.flush_due or not self._quiet("flush", log.log_dir)]:
            queue.pop(log, None)
            if log in self._flushing:
                self._flush_again.add(log)  # the one that runs may have begun before the segment was closed
            else:
                self._start_flush(log)

    async def flush(self, log: LogState) -> None:
        """Returns when everything that was appended before the call is durable, or cut away. Raises StorageError."""
        target = log.log_end_offset
        while not log.is_flushed(target):
            failure = log.failed or await asyncio.shield(self._start_flush(log))
            if failure is not None:
                raise failure

    def _start_flush(self, log: LogState) -> asyncio.Future[StorageError | None]:
        running = self._flushing.get(log)
        if running is None:
            if self._tasks is None:
                raise RuntimeError("housekeeping does not run")
            running = self._flushing[log] = self._tasks.create_task(self._flush_once(log))
        return running

    async def _flush_once(self, log: LogState) -> StorageError | None:
        """The failure is the result: every waiter gets it, and the other logs go on."""
        try:
            job = FlushJob.prepare(log)
            if job is None:
                return None
            began = asyncio.get_running_loop().time()
            try:
                await self.blocking(job.run)
                self._rest_after("flush", log.log_dir, began)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and self._manager.logs.get(log.tp) is not log:
                    return StorageError(log.log_dir, f"{log.tp} was deleted while it was flushed")
                return job.failed(error)
            except asyncio.CancelledError:
                job.cancelled()  # whoever closes the log syncs it
                raise
            job.completed(now_ms=self._manager.clock())
            self._points_moved = True
            self._manager.events.flushed(log)
        except StorageError as error:
            return error
        finally:
            del self._flushing[log]
            if log in self._flush_again:
                self._flush_again.discard(log)
                self._manager.queues.add_flush(log)
        return None

    # -- retention, deletion

    async def apply_retention(self) -> None:
        """Roll nothing, delete what retention lets go, one log after the other."""
        now_ms = self._manager.clock()
        async for log in self._slices():
            if log.log_end_offset == log.log_start_offset and len(log.segments) == 1:
                continue
            try:
                log.delete_old_segments(now_ms)
            except StorageError:
                continue  # the log has told the manager

    async def _slices(self) -> AsyncIterator[PartitionLog]:
        """Every log that is still there, with a pause for the loop every two milliseconds."""
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
            self._manager.failures.disk_failed(item.log_dir, f"cannot delete {item.paths[0]}", error)

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

    # -- checkpoints

    async def log_starts_durable(self) -> None:
        """Returns when the log starts of this moment survive anything. Raises StorageError."""
        for log_dir in self._manager.online_dirs():
            await self._checkpoint(log_dir, file_names.LOG_STARTS)

    async def _checkpoint_log_starts(self) -> None:
        for log_dir in self._manager.online_dirs():
            await self._checkpoint_quietly(log_dir, file_names.LOG_STARTS)

    async def _checkpoint_recovery_points(self) -> None:
        self._points_moved = False
        self._points_written = asyncio.get_running_loop().time()
        for log_dir in self._manager.online_dirs():
            await self._checkpoint_quietly(log_dir, file_names.RECOVERY_POINTS)

    async def _checkpoint_high_watermarks(self) -> None:
        for log_dir in self._manager.online_dirs():
            await self._checkpoint_quietly(log_dir, file_names.HIGH_WATERMARKS)

    async def _checkpoint_quietly(self, log_dir: LogDir, name: str) -> None:
        try:
            await self._checkpoint(log_dir, name)
        except StorageError:
            pass  # the manager took the directory offline

    async def _checkpoint(self, log_dir: LogDir, name: str) -> None:
        job = self._manager.checkpoints.job(log_dir, name)
        try:
            await self.blocking(job.run)
        except OSError as error:
            raise self._manager.failures.disk_failed(log_dir.path, f"cannot write {name}", error) from error
