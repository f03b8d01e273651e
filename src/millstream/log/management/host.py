"""The surroundings of a log outside of a broker: a host that does everything at once.

Tools and most tests use it. The log manager extends it with the services of a broker: it deletes
files later, keeps checkpoints durable, and flushes in the background.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.errors import ApiError
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.segments.segment import Segment
from millstream.log.state import LogServices, LogState
from millstream.ports.files import Files


class LogHost(LogServices):
    """Never flushes automatically, and deletes files at once."""

    writeback_bytes: int = 1 << 62
    """The number of bytes that a log appends before `writeback_due`."""
    flush_bytes: int = 1 << 62
    """The number of bytes that a log appends before `flush_wanted`."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def storage_failed(self, log: LogState, error: StorageError) -> None:
        """Leave the log in service."""

    def damage_found(self, log: LogState, damage: DamagedBatch) -> ApiError:
        return damage

    def check_truncation(self, log: LogState, offset: int) -> None:
        """Allow every truncation."""

    def before_truncation(self, log: LogState, offset: int, *, everything: bool) -> None:
        """Write nothing: there are no checkpoints."""

    def truncation_unfinished(self, log: LogState) -> None:
        """Leave it to the caller to retry."""

    def checkpointed_log_start(self, log: LogState) -> int:
        return log.log_start_offset

    def flush_wanted(self, log: LogState) -> None:
        """Leave it to the caller to flush."""

    def flush_by_time(self, log: LogState) -> None:
        """Leave it to the caller to flush."""

    def writeback_due(self, log: LogState) -> None:
        """Leave it to the kernel."""

    def discard(
        self,
        directory: str,
        segments: Sequence[Segment],
        snapshots: Sequence[str],
        *,
        delay_ms: int,
    ) -> None:
        for segment in segments:
            segment.close()
            for path in segment.names.paths():
                self._unlink(path)
        for path in snapshots:
            self._unlink(path)

    def _unlink(self, path: str) -> None:
        try:
            self.files.unlink(path)
        except FileNotFoundError:
            pass
