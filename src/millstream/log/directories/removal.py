"""Takes logs out of service: deletes them, or keeps them as stray directories."""

from __future__ import annotations

import os

from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.deferred_deletes import DeferredDeletes
from millstream.log.directories.log_directory import LogDir
from millstream.log.directories.replica_moves import ReplicaMoves
from millstream.log.management.failures import StorageFailures
from millstream.log.management.registry import LogRegistry
from millstream.log.management.work_queues import WorkQueues
from millstream.log.partition_log import PartitionLog
from millstream.log.state import LogState
from millstream.ports.files import Files


class LogRemoval:
    """Renames directories at once, so that the log is gone even after a crash.

    Raises StorageError.
    """

    def __init__(
        self,
        files: Files,
        registry: LogRegistry,
        moves: ReplicaMoves,
        queues: WorkQueues,
        deletes: DeferredDeletes,
        failures: StorageFailures,
    ) -> None:
        self._files = files
        self._registry = registry
        self._moves = moves
        self._queues = queues
        self._deletes = deletes
        self._failures = failures

    def delete(self, tp: TopicPartition, delay_ms: int) -> None:
        """Take the partition out of service; its files are deleted after a delay."""
        for log_dir, path in self._take_out(tp, "delete", delay_ms):
            self._deletes.schedule_tree(log_dir, path, delay_ms)

    def mark_stray(self, tp: TopicPartition, delay_ms: int) -> None:
        """Take the partition out of service, and keep its files under another name."""
        self._take_out(tp, "stray", delay_ms)

    def _take_out(self, tp: TopicPartition, kind: str, delay_ms: int) -> list[tuple[str, str]]:
        """Return (data directory, new path) of the partition's directories."""
        self._moves.cancel(tp)
        renamed = []
        log = self._registry.logs.pop(tp, None)
        if log is not None:
            self.remove_left_behind(log, delay_ms)
            self.rename(log, kind)
            renamed.append((log.log_dir, log.directory))
        damaged_in = self._registry.isolated.pop(tp, None)
        if damaged_in is not None:
            renamed.append((damaged_in.path, self.rename_unused(damaged_in, tp, kind)))
        self._registry.offline.pop(tp, None)
        self._failures.damage.forget(tp)
        return renamed

    def rename(self, log: PartitionLog, kind: str) -> None:
        """Close a log and give its directory another name."""
        path = os.path.join(log.log_dir, file_names.directory_name(log.tp, kind))
        self._queues.remove(log)
        log.close(clean=False)
        self._rename(log.log_dir, log.directory, path, f"cannot rename {log.directory}")
        log.segment_list.renamed(path)

    def rename_unused(self, log_dir: LogDir, tp: TopicPartition, kind: str) -> str:
        """Rename a partition's directory that no open log uses. Return its new path."""
        path = log_dir.file(file_names.directory_name(tp, kind))
        old = log_dir.file(file_names.directory_name(tp))
        self._rename(log_dir.path, old, path, f"cannot rename the directory of {tp}")
        return path

    def _rename(self, log_dir: str, old: str, new: str, action: str) -> None:
        try:
            self._files.rename(old, new)
        except OSError as error:
            raise self._failures.disk_failed(log_dir, action, error) from error

    # -- after a relocation

    def rename_left_behind(self, log: LogState) -> str:
        """Mark the directory that a log has left as deleted. Return the data directory to sync."""
        directory = self._moves.left_behind[log].directory
        try:
            return self._moves.rename_left_behind(log)
        except OSError as error:
            log_dir = os.path.dirname(directory)
            raise self._failures.disk_failed(
                log_dir, f"cannot rename {directory}", error
            ) from error

    def remove_left_behind(self, log: LogState, delay_ms: int) -> None:
        """Delete the directory that a log has left, if there is one."""
        if log in self._moves.left_behind:
            log_dir = self.rename_left_behind(log)
            directory = self._moves.left_behind.pop(log).directory
            self._deletes.schedule_tree(log_dir, directory, delay_ms)
