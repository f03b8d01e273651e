"""One partition on this broker: its log, its leadership, and who waits for its high watermark."""

from __future__ import annotations

from collections.abc import Callable

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER_EPOCH, TopicPartition
from millstream.log.partition_log import AppendResult, PartitionLog
from millstream.log.producer_state import Origin, Verification

Wake = Callable[[], None]


class Partition:
    """A hosted replica. ``log`` is None while its directory is offline."""

    __slots__ = ("isr", "leader", "leader_epoch", "log", "topic_id", "tp", "waiting")

    def __init__(self, tp: TopicPartition, topic_id: bytes, log: PartitionLog | None) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.leader = NO_LEADER_EPOCH
        self.leader_epoch = 0
        self.isr: tuple[int, ...] = ()
        self.waiting: dict[Wake, None] | None = None

    @property
    def online_log(self) -> PartitionLog:
        if self.log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.log

    def check_epoch(self, epoch: int) -> None:
        """KIP-320: a client or replica that knows another epoch must refresh its metadata first."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def append(
        self,
        records: memoryview,
        *,
        now_ms: int,
        needs_all: bool,
        origin: Origin = Origin.CLIENT,
        guard: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Appends as leader; moves the high watermark and wakes those who wait for it."""
        log = self.online_log
        if needs_all and len(self.isr) < log.config.min_insync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR : {len(self.isr)} is insufficient to satisfy the min.isr requirement "
                f"of {log.config.min_insync_replicas} for partition {self.tp}",
            )
        result = log.append(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            guard=guard,
            transaction_version=transaction_version,
        )
        if not result.duplicate:
            self.advance()
        return result

    def become_leader(self) -> None:
        """The epoch begins at the log's end; alone, everything in the log is committed."""
        if self.log is not None:
            self.log.epochs.assign(self.leader_epoch, self.log.log_end_offset)
            self.advance()

    def advance(self) -> None:
        """The high watermark is the smallest log end of the in-sync replicas; alone, it is our own."""
        log = self.log
        if log is not None and len(self.isr) == 1 and log.advance_high_watermark(log.log_end_offset):
            self.wake()

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait(self, wake: Wake) -> None:
        """Calls ``wake`` at every change, until ``forget``."""
        if self.waiting is None:
            self.waiting = {}
        self.waiting[wake] = None

    def forget(self, wake: Wake) -> None:
        if self.waiting is not None:
            self.waiting.pop(wake, None)
            if not self.waiting:
                self.waiting = None

    def wake(self) -> None:
        if self.waiting:
            for waiter in list(self.waiting):
                waiter()
