"""The surroundings of a log inside a broker: each request goes to the part that serves it."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.errors import ApiError
from millstream.log.directories.checkpointing import Checkpoints
from millstream.log.directories.deferred_deletes import DeferredDeletes
from millstream.log.directories.replica_moves import ReplicaMoves
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.management.failures import StorageFailures
from millstream.log.management.work_queues import WorkQueues
from millstream.log.segments.segment import Segment
from millstream.log.state import LogServices, LogState
from millstream.ports.files import Files


class ManagedLogHost(LogServices):
    """Serves the logs of a `LogManager`."""

    def __init__(
        self,
        files: Files,
        failures: StorageFailures,
        checkpoints: Checkpoints,
        deletes: DeferredDeletes,
        moves: ReplicaMoves,
        queues: WorkQueues,
        *,
        writeback_bytes: int,
        flush_bytes: int,
    ) -> None:
        self.files = files
        self.writeback_bytes = writeback_bytes
        self.flush_bytes = flush_bytes
        self._failures = failures
        self._checkpoints = checkpoints
        self._deletes = deletes
        self._moves = moves
        self._queues = queues

    def storage_failed(self, log: LogState, error: StorageError) -> None:
        self._failures.storage_failed(log, error)

    def damage_found(self, log: LogState, damage: DamagedBatch) -> ApiError:
        return self._failures.damage_found(log, damage)

    def check_truncation(self, log: LogState, offset: int) -> None:
        self._moves.check_truncation(log, offset)

    def before_truncation(self, log: LogState, offset: int, *, everything: bool) -> None:
        self._checkpoints.before_truncation(log, offset, everything=everything)

    def truncation_unfinished(self, log: LogState) -> None:
        self._queues.unfinished[log] = None

    def checkpointed_log_start(self, log: LogState) -> int:
        return self._checkpoints.log_start(log)

    def flush_wanted(self, log: LogState) -> None:
        self._queues.add_flush(log)

    def flush_by_time(self, log: LogState) -> None:
        self._queues.timed.add(log)

    def writeback_due(self, log: LogState) -> None:
        self._queues.add_writeback(log)

    def discard(
        self,
        directory: str,
        segments: Sequence[Segment],
        snapshots: Sequence[str],
        *,
        delay_ms: int,
    ) -> None:
        self._deletes.discard(directory, segments, snapshots, delay_ms=delay_ms)
