"""Deletes files after a delay: readers can finish, and a crash finds nothing half deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.log_directories import LogDirectories
from millstream.log.management.registry import LogRegistry
from millstream.log.segments.scheduled_deletion import ScheduledDeletion
from millstream.log.segments.segment import Segment
from millstream.ports.files import Files


class DeferredDeletes:
    """Renames files and directories at once, and schedules their deletion."""

    def __init__(
        self,
        files: Files,
        directories: LogDirectories,
        registry: LogRegistry,
        clock: Callable[[], int],
    ) -> None:
        self._files = files
        self._directories = directories
        self._registry = registry
        self._clock = clock
        self._scheduled: list[ScheduledDeletion] = []

    def discard(
        self,
        directory: str,
        segments: Sequence[Segment],
        snapshots: Sequence[str],
        *,
        delay_ms: int,
    ) -> None:
        """Rename files of a log to `.deleted`, and schedule their deletion.

        Called again after a failure, it skips those that are renamed; they may be deleted by then.
        """
        paths: list[str] = []
        try:
            for segment in segments:
                if segment.names.suffix != file_names.DELETED:
                    segment.close()
                    segment.rename(file_names.DELETED)
                    paths += segment.names.paths()
            for path in snapshots:
                try:
                    self._files.rename(path, path + file_names.DELETED)
                    paths.append(path + file_names.DELETED)
                except FileNotFoundError:
                    pass
        finally:
            parsed = file_names.parse_directory(os.path.basename(directory))
            log = self._registry.logs.get(parsed.tp) if parsed is not None else None
            start = (log.tp, log.log_start_offset) if log is not None else None
            self._schedule(os.path.dirname(directory), tuple(paths), delay_ms, log_start=start)

    def schedule_tree(self, log_dir: str, path: str, delay_ms: int = 0) -> None:
        """Schedule the deletion of a directory."""
        self._schedule(log_dir, (path,), delay_ms, tree=True)

    def _schedule(
        self,
        log_dir: str,
        paths: tuple[str, ...],
        delay_ms: int,
        *,
        tree: bool = False,
        log_start: tuple[TopicPartition, int] | None = None,
    ) -> None:
        if paths:
            due_ms = self._clock() + delay_ms
            self._scheduled.append(ScheduledDeletion(due_ms, log_dir, paths, tree, log_start))

    def take_due(self, now_ms: int) -> list[ScheduledDeletion]:
        """Return the deletions that are due; the caller runs them, in a thread."""
        due = [item for item in self._scheduled if item.due_ms <= now_ms and self._is_safe(item)]
        if due:
            self._scheduled = [item for item in self._scheduled if item not in due]
        return due

    def _is_safe(self, item: ScheduledDeletion) -> bool:
        if item.log_start is None or item.log_start[0] not in self._registry.logs:
            return True
        tp, offset = item.log_start
        return (
            self._directories.dirs[item.log_dir].checkpoints[file_names.LOG_STARTS].get(tp, 0)
            >= offset
        )
