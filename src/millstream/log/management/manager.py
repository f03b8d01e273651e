"""All logs of a broker: several data directories, creating, finding and deleting logs, shutdown.

Each task has a part: `LogDirectories` (identity, choice of a directory), `LogRegistry` (logs by
partition), `LogFactory` and `LogLoader` (creating and opening), `LogRemoval` and `DeferredDeletes`,
`Checkpoints`, `ReplicaMoves`, `WorkQueues` (work for housekeeping), `StorageFailures`. The manager
puts them together. Methods that wait for the disk say so; all others are for the event loop's
thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.checkpointing import Checkpoints
from millstream.log.directories.deferred_deletes import DeferredDeletes
from millstream.log.directories.log_directories import LogDirectories
from millstream.log.directories.log_directory import LogDir, LogDirError
from millstream.log.directories.removal import LogRemoval
from millstream.log.directories.replica_moves import ReplicaMoves
from millstream.log.errors import StorageError
from millstream.log.flush.job import FlushJob, finish
from millstream.log.management.events import IgnoredEvents, LogEvents
from millstream.log.management.factory import LogFactory, ManagerSettings
from millstream.log.management.failures import StorageFailures
from millstream.log.management.managed_host import ManagedLogHost
from millstream.log.management.registry import LogRegistry
from millstream.log.management.work_queues import WorkQueues
from millstream.log.partition_log import PartitionLog
from millstream.log.recovery.loading import LogLoader
from millstream.log.state import LogState
from millstream.ports.files import Files

logger = logging.getLogger("millstream.log.manager")

_MANY: Final = 32  # logs with unsynced data, beyond which their file system is synced as a whole

__all__ = ["LogDir", "LogDirError", "LogManager", "ManagerSettings"]


class LogManager:
    """The logs of one broker.

    `config_for` gives the settings of a topic, `clock` the time in ms.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        *,
        config_for: Callable[[str], LogConfig],
        clock: Callable[[], int],
        settings: ManagerSettings = ManagerSettings(),  # noqa: B008 - immutable
        events: LogEvents | None = None,
    ) -> None:
        self.files = files
        self.clock = clock
        self.events: LogEvents = events or IgnoredEvents()
        self.directories = LogDirectories(
            files, directories, on_full_change=self.events.full_directories_changed
        )
        self.registry = LogRegistry()
        self.moves = ReplicaMoves(files)
        self.queues = WorkQueues()
        self.failures = StorageFailures(
            self.directories, self.registry, self.moves, self.queues, self.events, clock
        )
        self.checkpoints = Checkpoints(self.directories, self.registry, self.moves, self.failures)
        self.deletes = DeferredDeletes(files, self.directories, self.registry, clock)
        host = ManagedLogHost(
            files,
            self.failures,
            self.checkpoints,
            self.deletes,
            self.moves,
            self.queues,
            writeback_bytes=settings.writeback_bytes,
            flush_bytes=settings.flush_bytes,
        )
        self._factory = LogFactory(host, settings, config_for, clock)
        self._removal = LogRemoval(
            files, self.registry, self.moves, self.queues, self.deletes, self.failures
        )
        self._loader = LogLoader(
            self._factory, self.registry, self.moves, self.deletes, self._removal, self.failures
        )
        # Shared with the parts, for readers outside of this package.
        self.dirs = self.directories.dirs
        self.full = self.directories.full
        self.logs = self.registry.logs
        self.offline = self.registry.offline
        self.futures = self.moves.futures
        self.damage = self.failures.damage
        self.pool = self._factory.pool

    # -- startup

    def open(self) -> None:
        """Lock the directories and read their identity.

        Raise LogDirError if the broker must not start.
        """
        self.directories.open()

    @property
    def cluster_id(self) -> str | None:
        """The cluster id in the directories. Raises LogDirError if they do not agree."""
        return self.directories.cluster_id

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Write the owner of the directories. Raise LogDirError if they belong to another."""
        for log_dir, error in self.directories.identify(cluster_id, node_id):
            self.failures.disk_failed(log_dir.path, "cannot write meta.properties", error)

    def online_dirs(self) -> list[LogDir]:
        return self.directories.online()

    @property
    def may_lack_records(self) -> bool:
        """Whether the machine went down while the directories were in use.

        Logs may lack their ends.
        """
        return self.directories.may_lack_records

    def note_machine(self) -> None:
        """Record that the controller knows of it. Waits for the disk."""
        for log_dir, error in self.directories.note_machine():
            self.failures.disk_failed(log_dir.path, "cannot write meta.properties", error)

    def load(self) -> Iterator[PartitionLog | None]:
        """Open every log, one per step; None for one that stays offline.

        Each step waits for the disk.
        """
        for log_dir in self.directories.online():
            yield from self._loader.load(log_dir)

    @property
    def settings(self) -> ManagerSettings:
        return self._factory.settings

    def reconfigure(self, settings: ManagerSettings) -> None:
        """Apply new settings to every log, present and future."""
        self._factory.settings = settings
        for log in self.logs.values():
            self._factory.configure(log)

    def wake(self) -> None:
        """Let housekeeping look for work now."""
        self.queues.wake()

    # -- finding, creating, deleting

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the log, or None if there is none.

        Raise ApiError(KAFKA_STORAGE_ERROR) if it is offline.
        """
        return self.registry.get(tp)

    def online_dir(self, directory: str) -> LogDir:
        """Return an online directory. Raise ApiError if it is not in log.dirs, or has failed."""
        return self.directories.get(directory)

    def prefer(self, tp: TopicPartition, log_dir: LogDir) -> None:
        """Create the log of this partition there, if it is created.

        Lost at a restart, as in Kafka.
        """
        self.directories.prefer(tp, log_dir)

    def forget_preferred(self, topic: str) -> None:
        """Drop the preferences of a deleted topic."""
        self.directories.forget_preferred(topic)

    def create(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID,
        *,
        directory: str | None = None,
        start_offset: int = 0,
    ) -> PartitionLog:
        """Create a log in the named directory, else the preferred one, else the least used one.

        Raises ApiError.
        """
        if self.get(tp) is not None:
            raise ValueError(f"the log of {tp} exists already")
        log_dir = self.directories.choose(tp, directory, self._used_directories)
        self.checkpoints.forget(log_dir, tp)
        path = log_dir.file(file_names.directory_name(tp))
        if self.files.exists(path):
            logger.warning("%s holds another log of %s; it is kept as a stray", path, tp)
            self._removal.rename_unused(log_dir, tp, "stray")
        try:
            log = self._factory.create(path, tp, topic_id, start_offset)
        except StorageError as error:
            if not error.temporary:
                self.failures.fail_directory(log_dir.path, error.message)
            else:
                if error.full:
                    self.full.write_rejected(log_dir.path)
                with suppress(OSError):  # else the next attempt would find these files
                    self.files.rmtree(path)
            raise
        self.logs[tp] = log
        self.directories.created(tp)
        return log

    def _used_directories(self) -> list[str]:
        """Return the data directory of every log and of every copy in progress."""
        return [log.log_dir for log in self.logs.values()] + [
            move.log_dir for move in self.futures.values()
        ]

    def delete(self, tp: TopicPartition) -> None:
        """Rename the log's directory, so that it is gone even after a crash.

        Delete its files later.
        """
        self._removal.delete(tp, self.settings.delete_delay_ms)

    def mark_stray(self, tp: TopicPartition) -> None:
        """Take a replica out of service that this broker should not have, and keep its files."""
        self._removal.mark_stray(tp, self.settings.delete_delay_ms)

    def rename_left_behind(self, log: LogState) -> str:
        """Mark the directory that a log has left as deleted. Return the data directory to sync."""
        return self._removal.rename_left_behind(log)

    def remove_left_behind(self, log: LogState) -> None:
        """Delete the directory that a log has left, if there is one."""
        self._removal.remove_left_behind(log, self.settings.delete_delay_ms)

    # -- shutdown

    def close(self, *, broker_epoch: int | None) -> None:
        """Close every log and release the directories. Waits for the disk.

        With a broker epoch the shutdown is clean, and the next start need not check anything.
        """
        broken = {log_dir.path for log_dir in self.registry.isolated.values()}
        if broker_epoch is not None:
            broken |= self._flush_logs()
        for log in self.logs.values():
            log.close(clean=False)
        for log_dir in self.dirs.values():
            clean = broker_epoch if log_dir.online and log_dir.path not in broken else None
            try:
                if log_dir.online and broker_epoch is not None:
                    self.checkpoints.write_last(log_dir)
                log_dir.close(clean_broker_epoch=clean)
            except OSError as error:
                logger.error("cannot close the data directory %s: %s", log_dir.path, error)

    def _flush_logs(self) -> set[str]:
        """Flush every log. Return the directories where that failed."""
        broken: set[str] = set()
        jobs: dict[str, list[FlushJob]] = {}
        for log in list(self.logs.values()):
            try:
                finish(log)
                job = FlushJob.prepare(log)
            except StorageError as error:
                broken.add(error.directory)
                continue
            if job is not None:
                jobs.setdefault(log.log_dir, []).append(job)
        for path, jobs_here in jobs.items():
            try:
                self._flush_together(path, jobs_here)
            except OSError as error:
                logger.error("cannot flush the logs in %s: %s", path, error)
                broken.add(path)
        return broken

    def _flush_together(self, path: str, jobs: list[FlushJob]) -> None:
        """Run the jobs of a directory; sync many of them with their file system."""
        together = len(jobs) > _MANY
        if together:
            for job in jobs:
                job.write()
            together = self.files.sync_all(path)
        for job in jobs:
            if not together:
                job.run()
            job.completed()
