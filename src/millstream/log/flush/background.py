"""Flushes and writebacks of logs in the background.

A produce that must be on disk before it is acknowledged (flush.messages) awaits `flush`, which
syncs once for all waiters (group commit). Other flushes let a slow disk rest in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from millstream.log.errors import StorageError
from millstream.log.flush.job import FlushJob
from millstream.log.management.blocking import Blocking
from millstream.log.management.manager import LogManager
from millstream.log.state import LogState

_REST: Final = 8  # times as long as the last background write of a directory took

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class BackgroundFlushes:
    """Runs at most one flush of a log at a time."""

    def __init__(
        self,
        manager: LogManager,
        blocking: Blocking,
        spawn: Spawn,
        on_completed: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._blocking = blocking
        self._spawn = spawn
        self._on_completed = on_completed
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._running: dict[LogState, asyncio.Future[StorageError | None]] = {}
        self._again: set[LogState] = set()

    async def flush(self, log: LogState) -> None:
        """Return when everything appended before the call is durable, or truncated.

        Raises StorageError.
        """
        target = log.log_end_offset
        while not log.is_flushed(target):
            failure = log.failed or await asyncio.shield(self._start(log))
            if failure is not None:
                raise failure

    def start_timed(self, now_ms: int) -> None:
        """Start the flushes that flush.ms demands."""
        for log in list(self._manager.queues.timed):
            if (
                log.log_end_offset > log.recovery_point
                and now_ms - log.flushed_ms >= log.config.flush_ms
            ):
                self._start(log)

    def start_queued(self) -> None:
        """Start the flushes that logs requested."""
        queue = self._manager.queues.flush
        for log in [log for log in queue if log.flush_due or not self._quiet("flush", log.log_dir)]:
            queue.pop(log, None)
            if log in self._running:
                self._again.add(log)  # that flush may have begun before the segment was closed
            else:
                self._start(log)

    def _start(self, log: LogState) -> asyncio.Future[StorageError | None]:
        running = self._running.get(log)
        if running is None:
            running = self._running[log] = self._spawn(self._run(log))
        return running

    async def _run(self, log: LogState) -> StorageError | None:
        """Flush once.

        The failure is the result: every waiter gets it, and the other logs continue.
        """
        try:
            job = FlushJob.prepare(log)
            if job is None:
                return None
            began = asyncio.get_running_loop().time()
            try:
                await self._blocking(job.run)
                self._rest_after("flush", log.log_dir, began)
            except OSError as error:
                if (
                    isinstance(error, FileNotFoundError)
                    and self._manager.logs.get(log.tp) is not log
                ):
                    return StorageError(log.log_dir, f"{log.tp} was deleted while it was flushed")
                return job.failed(error)
            except asyncio.CancelledError:
                job.cancelled()  # the shutdown of the log syncs it
                raise
            job.completed(now_ms=self._manager.clock())
            self._on_completed()
            self._manager.events.flushed(log)
        except StorageError as error:
            return error
        finally:
            del self._running[log]
            if log in self._again:
                self._again.discard(log)
                self._manager.queues.add_flush(log)
        return None

    async def write_back(self) -> None:
        """Start writing out the recent appends of the logs that requested it."""
        queue = self._manager.queues.writeback
        for log in [log for log in queue if not self._quiet("writeback", log.log_dir)]:
            queue.pop(log, None)
            try:
                active = log.segment_list.active
                job = log.flushes.writeback_job(active) if log.failed is None else None
            except OSError as error:
                log.failure("cannot read", error)
                continue
            if job is not None:
                began = asyncio.get_running_loop().time()
                await self._blocking(job)
                self._rest_after("writeback", log.log_dir, began)

    def _quiet(self, kind: str, log_dir: str) -> bool:
        return asyncio.get_running_loop().time() < self._quiet_until.get((kind, log_dir), 0.0)

    def _rest_after(self, kind: str, log_dir: str, began: float) -> None:
        """Leave a disk alone that is slower than the appends.

        The page cache takes the burst, and appends do not wait behind our own writes.
        """
        now = asyncio.get_running_loop().time()
        self._quiet_until[kind, log_dir] = now + _REST * (now - began)
