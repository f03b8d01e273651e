"""The data directories of a broker: opening them, their identity, and where new logs go."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.directories.full import FullDirectories
from millstream.log.directories.ids import assign_ids
from millstream.log.directories.log_directory import LogDir, LogDirError
from millstream.ports.files import Files

logger = logging.getLogger("millstream.log.manager")

_MAX_PREFERENCES: Final = (
    10_000  # for logs that do not exist; clients may name topics that never will
)


class LogDirectories:
    """The directories in log.dirs, whether they work or not."""

    def __init__(
        self, files: Files, paths: Sequence[str], *, on_full_change: Callable[[], None]
    ) -> None:
        absolute = [os.path.abspath(path) for path in paths]
        if len(set(absolute)) < len(absolute):
            raise LogDirError(f"a data directory is named twice: {', '.join(absolute)}")
        self.dirs = {path: LogDir(files, path) for path in absolute}
        self.full = FullDirectories(files, on_full_change)
        self._preferred: dict[TopicPartition, str] = {}

    # -- identity

    def open(self) -> None:
        """Lock the directories and read their identity.

        Raise LogDirError if the broker must not start.
        """
        try:
            for log_dir in self.dirs.values():
                log_dir.open()
        except LogDirError:
            for log_dir in self.dirs.values():
                log_dir.close(clean_broker_epoch=None)
            raise
        if not self.online():
            reasons = "; ".join(
                f"{log_dir.path}: {log_dir.reason}" for log_dir in self.dirs.values()
            )
            raise LogDirError(f"none of the data directories can be used: {reasons}")

    @property
    def cluster_id(self) -> str | None:
        """The cluster id in the directories. Raises LogDirError if they do not agree."""
        ids = {
            log_dir.meta["cluster.id"]
            for log_dir in self.dirs.values()
            if "cluster.id" in log_dir.meta
        }
        if len(ids) > 1:
            raise LogDirError(
                f"the data directories belong to different clusters: {', '.join(sorted(ids))}"
            )
        return next(iter(ids), None)

    def identify(self, cluster_id: str, node_id: int) -> Iterator[tuple[LogDir, OSError]]:
        """Write the owner of the directories. Yield those whose disk rejects it."""
        for log_dir in self.dirs.values():
            if not log_dir.online:
                logger.error("the data directory %s is offline: %s", log_dir.path, log_dir.reason)
        ids = assign_ids(self.dirs.values())
        for log_dir in self.online():
            try:
                log_dir.identify(cluster_id, node_id, ids)
            except OSError as error:
                yield log_dir, error

    @property
    def clean_broker_epoch(self) -> int:
        """The broker epoch of the last clean shutdown, if it is the same in all directories.

        Else -1.
        """
        epochs = {log_dir.clean_broker_epoch for log_dir in self.dirs.values()}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return -1 if epoch is None else epoch

    @property
    def may_lack_records(self) -> bool:
        """Whether the machine went down while the directories were in use.

        Logs may lack their ends.
        """
        return any(log_dir.may_lack_records for log_dir in self.online())

    def note_machine(self) -> Iterator[tuple[LogDir, OSError]]:
        """Record that the controller knows of it. Yield directories whose disk rejects it."""
        for log_dir in self.online():
            try:
                log_dir.note_machine()
            except OSError as error:
                yield log_dir, error

    # -- finding and choosing

    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs.values() if log_dir.online]

    def get(self, directory: str) -> LogDir:
        """Return an online directory. Raise ApiError if it is not in log.dirs, or has failed."""
        log_dir = self.dirs.get(os.path.abspath(directory))
        if log_dir is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"{directory} is not one of log.dirs")
        if not log_dir.online:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline: {log_dir.reason}"
            )
        return log_dir

    def prefer(self, tp: TopicPartition, log_dir: LogDir) -> None:
        """Create the log of this partition there, if it is created.

        Lost at a restart, as in Kafka.
        """
        self._preferred[tp] = log_dir.path
        while len(self._preferred) > _MAX_PREFERENCES:
            del self._preferred[next(iter(self._preferred))]

    def forget_preferred(self, topic: str) -> None:
        """Drop the preferences of a deleted topic."""
        for tp in [tp for tp in self._preferred if tp.topic == topic]:
            del self._preferred[tp]

    def created(self, tp: TopicPartition) -> None:
        """Drop the preference for a log that exists now."""
        self._preferred.pop(tp, None)

    def choose(
        self, tp: TopicPartition, directory: str | None, used: Callable[[], Iterable[str]]
    ) -> LogDir:
        """Return the named directory, else the preferred one, else the least used one.

        `used` returns the directory of every log. Raises ApiError.
        """
        preferred = self._preferred.get(tp)
        if preferred is not None and not self.dirs[preferred].online:
            preferred = None  # a failed directory does not prevent the replica
        if directory or preferred:
            return self.get(directory or preferred or "")
        online = self.online()
        if not online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no data directory is online")
        online = [log_dir for log_dir in online if log_dir.path not in self.full.paths] or online
        if len(online) == 1:
            return online[0]
        counts = Counter(used())
        return min(online, key=lambda log_dir: counts[log_dir.path])
