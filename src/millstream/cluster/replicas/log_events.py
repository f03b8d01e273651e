"""Passes events of the logs on to the replicas, which are created after the logs."""

from __future__ import annotations

from collections.abc import Callable

from millstream.cluster.replicas.manager import ReplicaManager
from millstream.core.types import TopicPartition
from millstream.log.directories.log_directory import LogDir
from millstream.log.management.events import LogEvents
from millstream.log.state import LogState


def _ignore() -> None:
    """Ignore the event."""


class ReplicaLogEvents(LogEvents):
    """Drops the events of startup: the replicas look at the logs when they are connected."""

    def __init__(self) -> None:
        self._replicas: ReplicaManager | None = None
        self._directory_failed: Callable[[LogDir, list[TopicPartition]], None] | None = None
        self._full_changed: Callable[[], None] = _ignore

    def connect(
        self,
        replicas: ReplicaManager,
        directory_failed: Callable[[LogDir, list[TopicPartition]], None] | None = None,
        full_changed: Callable[[], None] = _ignore,
    ) -> None:
        """Pass events on from now on; the two callbacks are for the broker."""
        self._replicas = replicas
        self._directory_failed = directory_failed
        self._full_changed = full_changed

    def flushed(self, log: LogState) -> None:
        if self._replicas is not None:
            self._replicas.flushed(log)

    def truncation_finished(self, log: LogState) -> None:
        if self._replicas is not None:
            self._replicas.truncation_finished(log)

    def isolated(self, tp: TopicPartition) -> None:
        if self._replicas is not None:
            self._replicas.went_offline([tp])

    def directory_failed(self, log_dir: LogDir, partitions: list[TopicPartition]) -> None:
        if self._directory_failed is not None:
            self._directory_failed(log_dir, partitions)

    def full_directories_changed(self) -> None:
        self._full_changed()

    def has_better_replica(self, tp: TopicPartition) -> bool:
        return self._replicas is not None and self._replicas.others_in_sync(tp)
