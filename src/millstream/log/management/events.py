"""The events of the logs that other parts of a broker react to."""

from __future__ import annotations

from typing import Protocol

from millstream.core.types import TopicPartition
from millstream.log.directories.log_directory import LogDir
from millstream.log.state import LogState


class LogEvents(Protocol):
    """Given to the log manager. Called on the event loop's thread."""

    def flushed(self, log: LogState) -> None:
        """The recovery point of a log has moved."""

    def truncation_finished(self, log: LogState) -> None:
        """A truncation that a full disk had interrupted is complete.

        The log takes appends again.
        """

    def directory_failed(self, log_dir: LogDir, partitions: list[TopicPartition]) -> None:
        """A data directory is offline, with these partitions."""

    def isolated(self, tp: TopicPartition) -> None:
        """A partition is offline: its files are damaged or gone."""

    def full_directories_changed(self) -> None:
        """A data directory ran out of space, or has space again."""

    def has_better_replica(self, tp: TopicPartition) -> bool:
        """Return whether another replica can serve the records that are damaged here.

        If so, this replica goes offline.
        """
        raise NotImplementedError


class IgnoredEvents(LogEvents):
    """Reacts to nothing: for tools, and as a base of those that need only some of the events."""

    def flushed(self, log: LogState) -> None:
        return None

    def truncation_finished(self, log: LogState) -> None:
        return None

    def directory_failed(self, log_dir: LogDir, partitions: list[TopicPartition]) -> None:
        return None

    def isolated(self, tp: TopicPartition) -> None:
        return None

    def full_directories_changed(self) -> None:
        return None

    def has_better_replica(self, tp: TopicPartition) -> bool:
        return False
