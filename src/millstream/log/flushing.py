"""Making a log durable: when it is time to, and the blocking half of it, run in a thread while appends go on.

Every `writeback_bytes` the kernel is asked to begin writing, so that dirty pages never pile up until it stops the
writer. Every `flush_bytes` the log is synced, with a snapshot of its producers: so the recovery point follows the end of
the log, and after a crash there is never more than that to check.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

from millstream.core.settings import LONG_MAX
from millstream.log.directories import file_names
from millstream.log.host import LogHost
from millstream.log.integrity.checksums import ChecksumFile, Checksums
from millstream.log.segments.segment import Segment
from millstream.ports.files import File, Files


class FlushPlan:
    """When a log wants attention, and which flush is still worth something."""

    __slots__ = (
        "_flushed_size",
        "_host",
        "_snapshot_size",
        "attention_at",
        "flush_at",
        "generation",
        "parent_synced",
    )

    def __init__(self, host: LogHost, *, parent_synced: bool) -> None:
        self._host = host
        self.parent_synced = parent_synced
        self.generation = (
            0  # another one after every truncation and move, so that an older flush does not count
        )
        self.flush_at = LONG_MAX  # an offset: flush.messages
        self.attention_at = host.writeback_bytes  # a size of the active segment
        self._flushed_size = 0
        self._snapshot_size = 0

    def begin_segment(self, size: int) -> None:
        """Another segment is active, or the active one has another size."""
        self.attention_at = size + self._host.writeback_bytes
        self._flushed_size = self._snapshot_size = size

    def interrupt(self) -> None:
        """The log is no longer what a running flush syncs."""
        self.generation += 1

    def wants_flush(self, size: int) -> bool:
        """Another `flush_bytes` are unsynced. Says so once."""
        if size - self._flushed_size < self._host.flush_bytes:
            return False
        self._flushed_size = size
        return True

    def wants_snapshot(self, size: int) -> bool:
        """Enough was appended since the last snapshot that replaying it would take a while. Says so once."""
        if size - self._snapshot_size < self._host.flush_bytes // 2:
            return False
        self._snapshot_size = size
        return True

    def writeback_job(self, segment: Segment) -> Callable[[], None] | None:
        """Starts writing out what was appended since the last time. For a thread; it promises nothing."""
        step = self._host.writeback_bytes
        begin, end = max(self.attention_at - step, 0), segment.size
        if end <= begin:
            return None
        self.attention_at = end + step
        return partial(segment.file().start_writeback, begin, end - begin)


class FlushJob:
    """Syncs what a log had written when the job was made. `offset` is the log end then."""

    __slots__ = (
        "_checksum_file",
        "_directory",
        "_files",
        "_logs",
        "_sync_parent",
        "_version",
        "checksums",
        "epochs",
        "generation",
        "offset",
        "paths",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        offset: int,
        generation: int,
        logs: Sequence[File],
        paths: Sequence[str],
        epochs: bytes | None,
        checksums: Checksums | None,
        checksum_file: ChecksumFile,
        *,
        sync_parent: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self.offset = offset
        self.generation = generation
        self._logs = logs
        self.paths = paths
        self.epochs = epochs
        self.checksums = checksums
        self._checksum_file = checksum_file
        self._version = checksum_file.version
        self._sync_parent = sync_parent

    def run(self) -> None:
        """Blocks. Files that were deleted meanwhile are passed over."""
        for log in self._logs:
            self._sync_log(log)
        for path in self.paths:
            self._sync(path)
        if self.epochs is not None:
            self._files.write_atomic(os.path.join(self._directory, file_names.LEADER_EPOCHS), self.epochs)
        self._write_checksums(sync=True)
        self._files.sync_dir(self._directory)
        if self._sync_parent:
            self._files.sync_dir(os.path.dirname(self._directory))

    def write(self) -> None:
        """Only what is not written yet; the caller syncs the whole file system."""
        if self.epochs is not None:
            path = os.path.join(self._directory, file_names.LEADER_EPOCHS)
            self._files.write_bytes(path + ".tmp", self.epochs)
            self._files.rename(path + ".tmp", path)
        self._write_checksums(sync=False)

    def _write_checksums(self, *, sync: bool) -> None:
        """Last: they tell of everything else."""
        if self.checksums is not None:
            self._checksum_file.write(self._directory, self.checksums, self._version, sync=sync)

    def _sync_log(self, log: File) -> None:
        try:
            log.sync()
        except OSError as error:
            # Even if the disk was only full: the kernel may have dropped what it could not write.
            raise OSError(errno.EIO, f"cannot sync: {error.strerror}", log.path) from error

    def _sync(self, path: str) -> None:
        try:
            if path != self._directory:  # which is synced last in any case
                self._files.sync_file(path)
        except FileNotFoundError:
            pass
