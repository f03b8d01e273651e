"""What a partition's log asks of its surroundings: deleting files later, durable checkpoints, background flushes.

The log manager is the real host. The base class below does everything at once, which is what tools and most tests
want.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.ports.files import Files

if TYPE_CHECKING:
    from millstream.core.errors import ApiError
    from millstream.log.errors import DamagedBatch, StorageError
    from millstream.log.partition_log import PartitionLog
    from millstream.log.segments.segment import Segment


class LogHost:
    """Called by logs on the loop's thread."""

    writeback_bytes = 1 << 62
    """How much a log appends before `writeback_due`."""
    flush_bytes = 1 << 62
    """How much a log appends before `flush_wanted`."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def storage_failed(self, log: PartitionLog, error: StorageError) -> None:
        """The disk failed under this log; a full disk is told too."""

    def damage_found(self, log: PartitionLog, damage: DamagedBatch) -> ApiError:
        """A batch of the log must not be served. Return what readers are told. May be called in a thread."""
        return damage

    def check_truncation(self, log: PartitionLog, offset: int) -> None:
        """Raises StorageError where the log must not be cut there yet; nothing has happened to it then."""

    def before_truncation(self, log: PartitionLog, offset: int, *, everything: bool) -> None:
        """The log is about to lose its end: no checkpoint may claim more than `offset` from now on, even after a
        crash. If it loses everything, its new start must be known too. Must be durable on return."""

    def cut_is_unfinished(self, log: PartitionLog) -> None:
        """The disk did not let a truncation come to its end: `cuts.finish` is to be tried until it does."""

    def checkpointed_log_start(self, log: PartitionLog) -> int:
        """Where the log would begin after a crash, as far as the checkpoint says."""
        return log.log_start_offset

    def flush_wanted(self, log: PartitionLog) -> None:
        """A segment was closed, or flush.messages or `flush_bytes` is reached: sync it soon."""

    def flush_by_time(self, log: PartitionLog) -> None:
        """The log has a flush.ms."""

    def writeback_due(self, log: PartitionLog) -> None:
        """Another `writeback_bytes` were appended."""

    def discard(
        self, directory: str, segments: Sequence[Segment], snapshots: Sequence[str], *, delay_ms: int
    ) -> None:
        """Segments and snapshot files that are no longer part of the log in this directory; they may still have
        readers for a while."""
        for segment in segments:
            segment.close()
            for path in segment.paths():
                self._unlink(path)
        for path in snapshots:
            self._unlink(path)

    def _unlink(self, path: str) -> None:
        try:
            self.files.unlink(path)
        except FileNotFoundError:
            pass
