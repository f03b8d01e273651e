"""The state of a partition's log, and the services it gets from its surroundings.

`PartitionLog` extends `LogState`: append and read run once per request, and an attribute of the
object itself is the cheapest to reach. The other operations are separate objects (`Truncation`,
`FlushJob`, `LogSearch`), which are given a `LogState`, exist for one call, and know nothing of
`PartitionLog`. The state never refers back to them: a log that is deleted must be freed at once,
because the broker freezes the garbage collector's view of everything it loads at startup.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Protocol, TypeVar

from millstream.core.errors import ApiError
from millstream.core.settings import LONG_MAX
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.errors import DamagedBatch, StorageError
from millstream.log.flush.plan import FlushPlan, FlushThresholds
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers.state import ProducerState
from millstream.log.segments.segment import Segment
from millstream.log.segments.segment_list import SegmentDisposal, SegmentList
from millstream.ports.files import Files

_T = TypeVar("_T")


class LogServices(FlushThresholds, SegmentDisposal, Protocol):
    """The services that a log gets from its surroundings, called on the event loop's thread."""

    files: Files

    def storage_failed(self, log: LogState, error: StorageError) -> None:
        """Report that the disk failed under this log, or is full."""

    def damage_found(self, log: LogState, damage: DamagedBatch) -> ApiError:
        """Report a batch that must not be served. Return the error for readers. Thread-safe."""
        raise NotImplementedError

    def check_truncation(self, log: LogState, offset: int) -> None:
        """Raise StorageError if the log must not be truncated there yet; it is unchanged then."""

    def before_truncation(self, log: LogState, offset: int, *, everything: bool) -> None:
        """Lower the checkpoints to `offset`, durably, before the log loses its end.

        If it loses everything, its new start must be known too.
        """

    def truncation_unfinished(self, log: LogState) -> None:
        """Retry `truncation.finish` until the disk lets it complete."""

    def checkpointed_log_start(self, log: LogState) -> int:
        """Return where the log would begin after a crash, according to the checkpoint."""
        raise NotImplementedError

    def flush_wanted(self, log: LogState) -> None:
        """Sync soon: a segment was closed, or flush.messages or `flush_bytes` is reached."""

    def flush_by_time(self, log: LogState) -> None:
        """Flush by the log's flush.ms."""

    def writeback_due(self, log: LogState) -> None:
        """Write back: another `writeback_bytes` were appended."""


class LogState:
    """One log at this moment: its offsets, files, producers, leader epochs and failures."""

    __slots__ = (
        "__weakref__",
        "cleaned_offset",
        "config",
        "epochs",
        "failed",
        "files",
        "flushed_ms",
        "flushes",
        "high_watermark",
        "host",
        "last_append_ms",
        "log_end_offset",
        "log_start_offset",
        "may_drop_deletions",
        "name",
        "producer_expiration_ms",
        "producer_state",
        "recovery_point",
        "segment_list",
        "topic_id",
        "tp",
        "unfinished",
        "verify_transactions",
    )

    def __init__(
        self,
        host: LogServices,
        segment_list: SegmentList,
        tp: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID | None,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producer_state: ProducerState,
        new: bool = False,
    ) -> None:
        self.host = host
        self.files: Files = host.files
        self.segment_list = segment_list
        self.tp = tp
        self.name = str(tp)
        self.config = config
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.cleaned_offset = -1  # where compaction continues; -1 before its first round
        # False while a replica is down that may lack tombstones and markers.
        self.may_drop_deletions = True
        self.epochs, self.producer_state = epochs, producer_state
        self.producer_expiration_ms = 24 * 3600 * 1000
        self.verify_transactions = False
        self.failed: StorageError | None = None
        self.unfinished: UnfinishedChange | None = None
        self.last_append_ms = 0
        self.flushed_ms = 0
        self.flushes = FlushPlan(host, parent_synced=not new)
        self.flushes.begin_segment(segment_list.active.size)
        self.set_flush_at()
        if config.flush_ms != LONG_MAX:
            host.flush_by_time(self)

    # -- files

    @property
    def directory(self) -> str:
        return self.segment_list.directory

    @property
    def log_dir(self) -> str:
        """The data directory (one of log.dirs) that holds the partition's directory."""
        return os.path.dirname(self.segment_list.directory)

    @property
    def segments(self) -> list[Segment]:
        """From oldest to active; the list is never changed in place."""
        return self.segment_list.segments

    @property
    def size(self) -> int:
        return self.segment_list.size

    # -- offsets

    @property
    def durable_log_start(self) -> int:
        """The log start that no crash can take back."""
        start = self.log_start_offset
        return min(start, self.host.checkpointed_log_start(self)) if start else 0

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided and replicated.

        Never below the log start, even if an open transaction began before it.
        """
        unstable = self.producer_state.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    @property
    def cleanable_end(self) -> int:
        """The offset below which compaction may work: closed, decided, replicated and flushed.

        Recovery treats a gap above the recovery point as data loss.
        """
        return min(
            self.segment_list.active.base_offset, self.last_stable_offset, self.recovery_point
        )

    def advance_high_watermark(self, offset: int) -> bool:
        """Move it forward, never beyond the log end. Return whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producer_state.on_high_watermark(offset)
        return True

    def restore_high_watermark(self, offset: int) -> None:
        """Set it from the checkpoint, at startup."""
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.producer_state.on_high_watermark(self.high_watermark)

    def advance_log_start(self, offset: int) -> bool:
        """Move it forward; followers pass their leader's log start. Return whether it moved."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.epochs.truncate_start(offset)
        self.producer_state.on_high_watermark(self.high_watermark)
        return True

    # -- durability

    @property
    def flush_due(self) -> bool:
        """Whether flush.messages is reached: acknowledge only after a flush."""
        return self.log_end_offset >= self.flushes.flush_at

    def is_flushed(self, offset: int) -> bool:
        """Return whether everything before the offset is durable, and the directory too."""
        return (
            self.recovery_point >= min(offset, self.log_end_offset) and self.flushes.parent_synced
        )

    def set_flush_at(self) -> None:
        self.flushes.flush_at = self.recovery_point + self.config.flush_messages

    # -- failures

    def guard(self, action: str, function: Callable[..., _T], *args: object) -> _T:
        """Call a function that uses the disk. Raise StorageError if the disk fails."""
        if self.failed is not None:
            raise self.failed
        try:
            return function(*args)
        except OSError as error:
            raise self.failure(action, error) from error

    def failure(self, action: str, error: OSError) -> StorageError:
        """Report an error of the disk, and return it as StorageError."""
        failure = StorageError(self.log_dir, f"{action} {self.tp}", error)
        self.host.storage_failed(self, failure)
        return failure

    def unreadable(self, action: str, error: OSError | DamagedBatch) -> ApiError:
        """Report that a read failed, and return the error for the reader."""
        if self.failed is not None:
            return self.failed
        return (
            self.failure(action, error)
            if isinstance(error, OSError)
            else self.host.damage_found(self, error)
        )

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.directory}, {self.log_start_offset}..{self.log_end_offset})"


class UnfinishedChange(Protocol):
    """A change of the segments that the disk interrupted. `finish` runs it again from its start."""

    reason: StorageError | None

    def run(self) -> None: ...
