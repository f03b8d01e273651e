"""One partition on this broker: its log, its leadership, and who waits for its high watermark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.partition_log import AppendResult, PartitionLog
from millstream.log.producer_state import Origin, Verification
from millstream.replication.fetch_session import Wanted

Wake = Callable[[], None]
# Told which of the rows that it watches has changed.
Watcher = Callable[[Wanted], None]


class Partition:
    """A hosted replica. ``log`` is None while its directory is offline."""

    __slots__ = ("isr", "leader", "leader_epoch", "log", "telling", "topic_id", "tp", "waiting", "watchers")

    def __init__(self, tp: TopicPartition, topic_id: bytes, log: PartitionLog | None) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.leader = NO_LEADER
        self.leader_epoch = 0
        self.isr: tuple[int, ...] = ()
        self.waiting: dict[Wake, None] | None = None
        self.watchers: dict[Watcher, Wanted] | None = None
        self.telling = False

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
            if self.log.flush_due:
                self.log.ask_flush()

    def advance(self) -> None:
        """The high watermark is the smallest log end of the in-sync replicas; alone, it is our own. Where flush.messages is reached
        it waits for the disk: nobody, coordinators included, is told what a power cut could take back."""
        log = self.log
        if log is not None and len(self.isr) == 1:
            end = log.recovery_point if log.flush_due else log.log_end_offset
            if log.advance_high_watermark(end):
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

    def watch(self, watcher: Watcher, wanted: Wanted) -> None:
        """Tells ``watcher`` of this row after changes, until ``unwatch``. It is told a turn of the loop later, once for
        all that happened in between, so that no append waits for those who only want to read."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = wanted

    def unwatch(self, watcher: Watcher) -> None:
        if self.watchers is not None:
            self.watchers.pop(watcher, None)
            if not self.watchers:
                self.watchers = None

    def wake(self) -> None:
        if self.watchers and not self.telling:
            self.telling = True
            asyncio.get_running_loop().call_soon(self._tell)
        if self.waiting:
            for waiter in list(self.waiting):
                waiter()

    def _tell(self) -> None:
        self.telling = False
        if self.watchers:
            for watcher, wanted in list(self.watchers.items()):
                watcher(wanted)
