"""Failed disks and damaged files: takes directories and partitions offline.

A directory whose disk fails goes offline with its partitions, which respond with
KAFKA_STORAGE_ERROR; the others stay in service. A partition whose flushed data is damaged goes
offline alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from millstream.core.errors import ApiError
from millstream.log.directories.log_directories import LogDirectories
from millstream.log.directories.replica_moves import ReplicaMoves
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.integrity.damage import DamageRegister
from millstream.log.management.events import LogEvents
from millstream.log.management.registry import LogRegistry
from millstream.log.management.work_queues import LoopThread, WorkQueues
from millstream.log.partition_log import PartitionLog
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.log.state import LogState

logger = logging.getLogger("millstream.log.manager")


class StorageFailures:
    """Takes directories and partitions offline. Reports may come from any thread."""

    def __init__(
        self,
        directories: LogDirectories,
        registry: LogRegistry,
        moves: ReplicaMoves,
        queues: WorkQueues,
        events: LogEvents,
        clock: Callable[[], int],
    ) -> None:
        self._directories = directories
        self._registry = registry
        self._moves = moves
        self._queues = queues
        self._events = events
        self.damage = DamageRegister(clock)
        self.loop_thread = LoopThread()
        self._rate_limited = RateLimitedLog(logger, clock)

    def disk_failed(self, path: str, action: str, cause: OSError) -> StorageError:
        """Report a failure outside of any log, and return it as StorageError."""
        failure = StorageError(path, action, cause)
        self._report(failure)
        return failure

    def storage_failed(self, log: LogState, error: StorageError) -> None:
        """Report that the disk failed under a log."""
        if error.damaged:
            self.loop_thread.run(lambda: self.isolate(log, error.message))
        else:
            self._report(error)

    def damage_found(self, log: LogState, damage: DamagedBatch) -> ApiError:
        """Serve the good records, unless another replica has all of them."""
        self.damage.note(log.tp, damage)
        self.loop_thread.run(partial(self._yield_to_better_replica, log, damage.message))
        return damage

    def _yield_to_better_replica(self, log: LogState, reason: str) -> None:
        if self._events.has_better_replica(log.tp):
            self.isolate(log, reason)

    def _report(self, error: StorageError) -> None:
        if error.full:
            self.loop_thread.run(lambda: self._directories.full.write_rejected(error.directory))
        if error.temporary:
            self._rate_limited.log(logging.ERROR, error.directory, error.message)
        else:
            self.loop_thread.run(lambda: self.fail_directory(error.directory, error.message))

    def fail_directory(self, path: str, reason: str) -> None:
        """Take a directory offline, with every partition in it."""
        log_dir = self._directories.dirs[path]
        if not log_dir.online:
            return
        log_dir.fail(reason)
        self._directories.full.forget(path)
        partitions = []
        for log in self._registry.in_directory(path):
            self._retire(log, reason)
            self._registry.offline[log.tp] = reason
            partitions.append(log.tp)
        self._moves.directory_failed(path, partitions)
        self._events.directory_failed(log_dir, partitions)

    def isolate(self, log: LogState, reason: str) -> None:
        """Take one partition offline: its files are damaged or gone, the disk works."""
        current = self._registry.logs.get(log.tp)
        if current is None or current is not log:
            return  # deleted, or offline already
        self._retire(current, reason)
        self._registry.isolate(self._directories.dirs[log.log_dir], log.tp, reason)
        self._events.isolated(log.tp)

    def _retire(self, log: PartitionLog, reason: str) -> None:
        log.failed = StorageError(log.log_dir, f"{log.tp} is offline ({reason})")
        log.close(clean=False)
        self._queues.remove(log)
        del self._registry.logs[log.tp]
