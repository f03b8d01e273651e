"""Writes the checkpoint files of the data directories from the present offsets of their logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.log_directories import LogDirectories
from millstream.log.directories.log_directory import CHECKPOINTS, LogDir, Offsets
from millstream.log.directories.replica_moves import ReplicaMoves
from millstream.log.management.failures import StorageFailures
from millstream.log.management.registry import LogRegistry
from millstream.log.state import LogState


class CheckpointJob(NamedTuple):
    """A checkpoint file to be written: `run` waits for the disk."""

    log_dir: LogDir
    name: str
    offsets: Offsets
    version: int

    def run(self) -> None:
        try:
            self.log_dir.write_checkpoint(self.name, self.offsets, self.version)
        finally:
            self.log_dir.in_progress[self.name].pop(self.version, None)


class Checkpoints:
    """The checkpoints of all directories.

    Recovery points, log starts, high watermarks, cleaner offsets.
    """

    def __init__(
        self,
        directories: LogDirectories,
        registry: LogRegistry,
        moves: ReplicaMoves,
        failures: StorageFailures,
    ) -> None:
        self._directories = directories
        self._registry = registry
        self._moves = moves
        self._failures = failures
        self._version = 0

    def job(self, log_dir: LogDir, name: str) -> CheckpointJob:
        """Return the job that writes the present offsets of a directory's logs.

        Run it in a thread.
        """
        self._version += 1
        job = CheckpointJob(log_dir, name, self._offsets(log_dir, name), self._version)
        log_dir.in_progress[name][job.version] = job.offsets
        return job

    def _offsets(self, log_dir: LogDir, name: str) -> Offsets:
        before = log_dir.checkpoints[name]
        isolated = self._registry.isolated
        offsets = {
            tp: before[tp] for tp, where in isolated.items() if where is log_dir and tp in before
        }
        for log in self._registry.in_directory(log_dir.path):
            tp = log.tp
            if name == file_names.RECOVERY_POINTS:
                offsets[tp] = log.recovery_point
            elif name == file_names.HIGH_WATERMARKS:
                offsets[tp] = log.high_watermark
            elif name == file_names.CLEANER_OFFSETS:
                if log.cleaned_offset >= 0:
                    offsets[tp] = log.cleaned_offset
            elif log.log_start_offset > 0:
                # Kafka omits it if the first segment says the same; but the creation of that file
                # may not have reached the disk yet.
                offsets[tp] = log.log_start_offset
        if name == file_names.LOG_STARTS:
            # The copy of a log that is relocated here begins where the log does when it takes over.
            for tp, move in self._moves.futures.items():
                if move.target is log_dir and move.log.log_start_offset > 0:
                    offsets[tp] = move.log.log_start_offset
        return offsets

    def log_start(self, log: LogState) -> int:
        """Return where the log would begin after a crash."""
        return self._directories.dirs[log.log_dir].checkpoints[file_names.LOG_STARTS].get(log.tp, 0)

    # -- waiting for the disk

    def forget(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """Drop the entries of an earlier log of the same name: they do not apply to the new one."""
        for name in CHECKPOINTS:
            if log_dir.largest_claim(name, tp) is not None:
                self._write(log_dir, name)

    def before_truncation(self, log: LogState, offset: int, *, everything: bool) -> None:
        """Let no checkpoint claim more than the offset from now on."""
        log_dir = self._directories.dirs[log.log_dir]
        for name in CHECKPOINTS:
            # A job that runs in a thread does not know of the truncation: this one supersedes it.
            if everything or (log_dir.largest_claim(name, log.tp) or 0) > offset:
                self._write(log_dir, name)

    def _write(self, log_dir: LogDir, name: str) -> None:
        try:
            self.job(log_dir, name).run()
        except OSError as error:
            raise self._failures.disk_failed(log_dir.path, f"cannot write {name}", error) from error

    def write_all(self, names: Iterable[str] = CHECKPOINTS) -> None:
        """Write the checkpoints of all directories."""
        for log_dir in self._directories.online():
            for name in names:
                self._write(log_dir, name)

    def write_last(self, log_dir: LogDir) -> None:
        """Write the checkpoints of a directory at shutdown. Raises OSError."""
        for name in CHECKPOINTS:
            self.job(log_dir, name).run()
