"""Making a log durable: the job that syncs it, run in a thread while appends continue."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from millstream.log.directories import file_names
from millstream.log.errors import StorageError
from millstream.log.integrity.checksums import Checksums, Small
from millstream.log.state import LogState
from millstream.ports.files import File


class FlushJob:
    """Syncs everything the log had written when the job was created.

    `prepare` it on the event loop, `run` it in a thread, then report the outcome on the loop with
    `completed`, `failed` or `cancelled`.
    """

    __slots__ = (
        "_checksum_file",
        "_checksums",
        "_directory",
        "_epochs",
        "_files",
        "_generation",
        "_log",
        "_log_files",
        "_offset",
        "_paths",
        "_sync_parent",
        "_version",
    )

    def __init__(
        self,
        log: LogState,
        log_files: Sequence[File],
        paths: Sequence[str],
        epochs: bytes | None,
        checksums: Checksums | None,
    ) -> None:
        self._log = log
        self._files = log.files
        self._directory = log.directory
        self._offset = log.log_end_offset
        self._generation = log.flushes.generation
        self._sync_parent = not log.flushes.parent_synced
        self._log_files = log_files
        self._paths = paths
        self._epochs = epochs
        self._checksums = checksums
        self._checksum_file = log.segment_list.checksums.file
        self._version = self._checksum_file.version

    @classmethod
    def prepare(cls, log: LogState) -> FlushJob | None:
        """Return the job that makes the log durable up to its present end, or None if it is."""
        epochs = log.epochs.take_unsaved(log.log_end_offset) if log.epochs.changed else None
        idle = (
            epochs is None and not log.segment_list.unsynced and log.is_flushed(log.log_end_offset)
        )
        checksums = unsaved_checksums(log) if idle and log.segment_list.closing else None
        if idle and checksums is None:
            return None
        try:
            return log.guard("cannot write the indexes", cls._collect, log, epochs, checksums)
        except StorageError:
            log.epochs.not_saved()
            raise

    @classmethod
    def _collect(cls, log: LogState, epochs: bytes | None, checksums: Checksums | None) -> FlushJob:
        segment_list = log.segment_list
        if log.flushes.wants_snapshot(segment_list.active.size):
            segment_list.take_snapshot(
                log.log_end_offset, log.producer_state.snapshot(), replace=True
            )
        recent = segment_list.segments[segment_list.floor(log.recovery_point) :]
        unflushed = [segment for segment in recent if segment.size or segment.log_file.active]
        for segment in unflushed:
            segment.log_file.trim()
            segment.index.write()
        job = cls(
            log,
            [segment.file() for segment in unflushed],
            [path for segment in unflushed for path in segment.names.paths()[1:]]
            + sorted(segment_list.unsynced),
            epochs,
            checksums or unsaved_checksums(log),
        )
        segment_list.unsynced = set()
        return job

    # -- in a thread

    def run(self) -> None:
        """Wait for the disk. Files that were deleted since are skipped."""
        for log_file in self._log_files:
            self._sync_log(log_file)
        for path in self._paths:
            self._sync(path)
        if self._epochs is not None:
            self._files.write_atomic(
                os.path.join(self._directory, file_names.LEADER_EPOCHS), self._epochs
            )
        self._write_checksums(sync=True)
        self._files.sync_dir(self._directory)
        if self._sync_parent:
            self._files.sync_dir(os.path.dirname(self._directory))

    def write(self) -> None:
        """Write without syncing; the caller syncs the whole file system."""
        if self._epochs is not None:
            path = os.path.join(self._directory, file_names.LEADER_EPOCHS)
            self._files.write_bytes(path + ".tmp", self._epochs)
            self._files.rename(path + ".tmp", path)
        self._write_checksums(sync=False)

    def _write_checksums(self, *, sync: bool) -> None:
        """Write them last: they describe everything else."""
        if self._checksums is not None:
            self._checksum_file.write(self._directory, self._checksums, self._version, sync=sync)

    def _sync_log(self, log_file: File) -> None:
        try:
            log_file.sync()
        except OSError as error:
            # Even if the disk was only full: the kernel may have dropped the pages it could not
            # write.
            raise OSError(errno.EIO, f"cannot sync: {error.strerror}", log_file.path) from error

    def _sync(self, path: str) -> None:
        try:
            if path != self._directory:  # which is synced last in any case
                self._files.sync_file(path)
        except FileNotFoundError:
            pass

    # -- the outcome, on the event loop

    def completed(self, *, now_ms: int = 0) -> None:
        """Move the recovery point up, unless the log was truncated or relocated since."""
        log = self._log
        log.flushed_ms = now_ms
        if self._generation == log.flushes.generation:
            log.flushes.parent_synced = True
            log.recovery_point = max(log.recovery_point, self._offset)
        log.set_flush_at()

    def failed(self, error: OSError) -> StorageError:
        """Report a failed sync. Unless the disk was only full, the directory goes offline.

        After a failed sync it is unknown what is on the disk.
        """
        self.cancelled()
        return self._log.failure("cannot flush", error)

    def cancelled(self) -> None:
        """Leave everything that the job should have synced to the next one."""
        log = self._log
        log.segment_list.unsynced.update(self._paths)
        if self._epochs is not None:
            log.epochs.not_saved()
        if self._checksums is not None:
            log.segment_list.checksums.not_saved()


def unsaved_checksums(log: LogState) -> Checksums | None:
    """Return the contents that `index-checksums` should have, or None if it has them."""
    segment_list, small = log.segment_list, Small(log.epochs.saved, log.topic_id)
    return segment_list.checksums.unsaved(
        segment_list.segments, log.flushes.generation, small, closing=segment_list.closing
    )


def flush(log: LogState) -> None:
    """Make the log durable up to its present end. Waits for the disk."""
    job = FlushJob.prepare(log)
    if job is not None:
        try:
            job.run()
        except OSError as error:
            raise job.failed(error) from error
        job.completed()


def finish(log: LogState) -> None:
    """Write, but do not sync, the files of a clean shutdown; a flush job syncs them."""
    log.guard("cannot close", _finish, log)


def _finish(log: LogState) -> None:
    segment_list = log.segment_list
    active, segment_list.closing = segment_list.active, True
    active.log_file.trim()
    if active.index.is_loaded or log.recovery_point < log.log_end_offset:
        active.index.times().maybe_append(*active.index.largest())
    segment_list.take_snapshot(log.log_end_offset, log.producer_state.snapshot())
