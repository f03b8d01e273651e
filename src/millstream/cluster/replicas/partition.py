"""One partition on this broker: its log, its role, and who waits for its high watermark.

As leader with followers it keeps their progress (``replication/leader.py``) and moves the high watermark with it; alone, its own
log end is the high watermark. As follower it is fed by a fetcher (``replica_fetcher.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from millstream.cluster.replicas.pending_sequences import (
    BEGINNING,
    HANDOVER_MS,
    GivenUp,
    ProducerGaps,
    Sent,
    Told,
    is_transactional,
    sent_by,
)
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.partition_log import AppendResult, PartitionLog
from millstream.log.producers.state import Origin, Verification, comes_after
from millstream.ports.turns import has_time
from millstream.replication.fetch_session import PartitionFetch
from millstream.replication.leader import IsrProposal, LeaderReplicas

# How often is looked whether followers have confirmed who leads; of so many partitions at a time, and more of them less often.
_CONFIRM_S = 0.005
_CONFIRM_AT_ONCE = 100
# Watchers that are told in one turn, at least.
_TOLD_AT_ONCE = 64

# Kafka's answers to these errors have no log start offset. All others do: after UNKNOWN_PRODUCER_ID the Java client
# compares it with its last acknowledged offset, and retries for ever while it is unknown.
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)

Wake = Callable[[], None]
# Told which of the rows that it watches has changed.
Watcher = Callable[[PartitionFetch], None]


def _no_time() -> int:
    """Of a replica that has never led."""
    return 0


class Partition:
    """A hosted replica. ``log`` is None while its directory is offline."""

    __slots__ = (
        "followers",
        "gaps",
        "handed_over_until_ms",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "max_lag_ms",
        "partition_epoch",
        "reign",
        "steady_ms",
        "telling",
        "topic_id",
        "tp",
        "waiting",
        "watchers",
    )

    def __init__(
        self, tp: TopicPartition, topic_id: bytes, log: PartitionLog | None, gaps: ProducerGaps
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.leader = NO_LEADER
        self.leader_epoch = 0
        # The epoch in which the leader of now began to lead, without a break since: a replica that goes is a new epoch, but the same log.
        self.reign = 0
        self.partition_epoch = -1
        self.isr: tuple[int, ...] = ()
        # Of the other replicas, while this one leads and there are any.
        self.followers: LeaderReplicas | None = None
        self.max_lag_ms = 0
        self.steady_ms: Callable[[], int] = _no_time
        self.gaps = gaps
        # Until then the first batch of a producer may be one whose predecessor was sent to another leader; 0 for never.
        self.handed_over_until_ms = 0
        self.waiting: dict[Wake, None] | None = None
        self.watchers: dict[Watcher, PartitionFetch] | None = None
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
        try:
            doubtful = self.replica_count > 1 or self.gaps.any or self.handed_over_until_ms
            if doubtful and origin is Origin.CLIENT:
                self._check_predecessor(records, log)
            if needs_all:
                self.check_in_sync()
            result = log.append(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                guard=guard,
                transaction_version=transaction_version,
            )
        except ApiError as error:
            if origin is Origin.CLIENT:
                self._explain(records, log, error)
                if error.code not in _WITHOUT_LOG_START:
                    error.log_start_offset = log.log_start_offset
            raise
        if self.gaps.any:
            self._written(records)
        if not result.duplicate:
            if self.followers is not None:
                self.advance_with_followers()
                self.tell_watchers()  # followers read to the end of the log
            else:
                self.advance()
        return result

    def _check_predecessor(self, records: memoryview, log: PartitionLog) -> None:
        """The log takes any sequence from a producer that it does not know. Here a batch before this one may be known that was refused; and where there
        are other replicas, it may have been refused by one of those, which a client took for the leader."""
        if self.handed_over_until_ms and self.steady_ms() > self.handed_over_until_ms:
            self.handed_over_until_ms = 0
        sent = sent_by(records)
        if sent is None or sent.sequence <= 0:
            return
        if log.producer_state.knows(sent.producer_id):
            if (self.gaps.any or self.handed_over_until_ms) and is_transactional(records):
                self._check_overtaking(sent, log)
            return
        # One that is further has been forgotten: its records are old, or it was silent for long.
        begins = sent.sequence < BEGINNING
        told = self._missing(sent, -1, elsewhere=begins and self.replica_count > 1)
        if told is not None:
            raise ApiError(*told)

    def _check_overtaking(self, sent: Sent, log: PartitionLog) -> None:
        """Refuse the first batch of a transaction that another one may precede, for as long as that one may come.

        librdkafka uses the sequences of an aborted batch again. If the first batch of the next transaction was
        refused, here or by the leader before, its second one may arrive first, and fits behind the aborted
        batch. Acknowledged, it would count for the first one as well, which would be missing from the commit.
        """
        producer = log.producer_state.producers[sent.producer_id]
        last_offset = producer.ended_right_before(sent.epoch, sent.sequence)
        if last_offset < 0:
            return
        told = self._refused_before(sent, -1)
        if told is None and self.handed_over_until_ms and last_offset < log.epochs.starts[-1]:
            told = self.gaps.elsewhere(*self.tp, sent, self.reign)
        if told:
            raise ApiError(*told)

    def _explain(self, records: memoryview, log: PartitionLog, error: ApiError) -> None:
        """Raises what a producer is told instead of this error, if anything; keeps it for what comes behind."""
        sent = sent_by(records)
        if sent is None:
            return
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.gaps.refused(self.tp.topic, self.tp.partition, sent, error)
            return
        last = log.producer_state.last_sequence(sent.producer_id, sent.epoch)
        if last >= 0 and not comes_after(sent.sequence, last):
            return  # not a gap: it is from before
        told = self._missing(sent, last, elsewhere=False)
        if told is not None:
            raise ApiError(*told)

    def _missing(self, sent: Sent, written: int, *, elsewhere: bool) -> Told | None:
        """What is told to a producer whose batch does not fit behind the last one that is ``written``, as long as the one between may come."""
        told = self._refused_before(sent, written)
        if told is not None:
            return told or None
        if elsewhere or self.handed_over_until_ms:
            return self.gaps.elsewhere(*self.tp, sent, self.reign)
        return None

    def _refused_before(self, sent: Sent, written: int) -> Told | GivenUp | None:
        for name in (self.tp.topic, self.topic_id):
            told = self.gaps.before(name, self.tp.partition, sent, written)
            if told is not None:
                return told
        return None

    def _written(self, records: memoryview) -> None:
        sent = sent_by(records)
        if sent is not None:
            self.gaps.written(self.tp.topic, self.topic_id, self.tp.partition, sent)

    def check_in_sync(self) -> None:
        """Whether there are enough replicas for what must not get lost. As in Kafka no more are asked for than there are: a topic with one
        replica would never take a record where the brokers' min.insync.replicas is two."""
        needed = self.online_log.config.min_insync_replicas
        if len(self.isr) < needed and len(self.isr) < self.replica_count:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR : {len(self.isr)} is insufficient to satisfy the min.isr requirement "
                f"of {min(needed, self.replica_count)} for partition {self.tp}",
            )

    @property
    def replica_count(self) -> int:
        """While this one leads."""
        return 1 if self.followers is None else len(self.followers.followers) + 1

    # ---- role ------------------------------------------------------------------------------------

    def lead(
        self,
        node_id: int,
        state: PartitionState,
        replicas: Sequence[int],
        *,
        steady_ms: Callable[[], int],
        max_lag_ms: int,
        eligible: Callable[[int, int], bool],
    ) -> bool:
        """Leads in this state; whether that is a new epoch, which begins at the log's end. ``steady_ms`` is a clock that nobody sets: how long
        followers are behind is measured by it."""
        new = self.leader != node_id or self.leader_epoch != state.leader_epoch
        if new and self._handed_over(node_id, state, replicas):
            self.handed_over_until_ms = steady_ms() + HANDOVER_MS
        # The controller's answer may be ahead of its feed.
        if new or state.partition_epoch >= self.partition_epoch:
            self._take(state)
        self.steady_ms, self.max_lag_ms = steady_ms, max_lag_ms
        log = self.log
        if log is None:
            self.followers = None
            return new
        if new or self.followers is None:  # its log may have come only now
            self.begin_epoch()
        if len(replicas) == 1:
            self.followers = None
        elif new or self.followers is None:
            self.followers = LeaderReplicas(
                node_id,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                replicas=replicas,
                isr=state.isr,
                log_end=log.log_end_offset,
                now_ms=steady_ms(),
                eligible=eligible,
            )
        else:
            self.followers.on_isr(state.isr, state.partition_epoch)
            self.followers.assign(replicas, now_ms=steady_ms())
            self.tell_watchers()  # a follower that is no longer in the ISR has to show itself
        self.advance_either()
        if log.flush_due:
            log.ask_flush()
        if new:
            self.wake()  # who waited for an older epoch
        return new

    def _handed_over(self, node_id: int, state: PartitionState, replicas: Sequence[int]) -> bool:
        """Whether another may have led before, also where this broker heard of several changes at once. Not so with a topic that begins, and with a
        broker that is alone and comes back."""
        if self.leader == node_id:
            return state.leader_epoch > self.leader_epoch + 1
        return state.leader_epoch > 0 and (self.leader != NO_LEADER or len(replicas) > 1)

    def begin_epoch(self) -> None:
        """The epoch of this leader begins at the end of its log, unless there are records of it already. Followers that ask with an epoch
        in between are told by it where the histories part; to begin anew at the high watermark would lose records. Again when a cut that was
        interrupted before the election is done: it takes the entry away with what it cuts."""
        log = self.online_log
        log.epochs.assign(self.leader_epoch, log.log_end_offset)
        if self.followers is not None and self.followers.leader_epoch == self.leader_epoch:
            self.followers.epoch_start = log.epochs.starts[-1]

    def follow(self, state: PartitionState) -> None:
        """Another replica leads, or none."""
        self.followers = None
        self._take(state)
        self.wake()

    def _take(self, state: PartitionState) -> None:
        # Another leader is another epoch, so nobody can have led between two that follow each other.
        if state.leader != self.leader or state.leader_epoch > self.leader_epoch + 1:
            self.reign = state.leader_epoch
        self.leader, self.leader_epoch, self.isr = state.leader, state.leader_epoch, state.isr
        self.partition_epoch = state.partition_epoch

    def advance_either(self) -> None:
        if self.followers is not None:
            self.advance_with_followers()
        else:
            self.advance()

    def advance(self) -> None:
        """Alone, the high watermark is our own log end. Where flush.messages is reached it waits for the disk: nobody, coordinators
        included, is told what a power cut could take back."""
        log = self.log
        if log is not None and self.followers is None and len(self.isr) == 1:
            end = log.recovery_point if log.flush_due else log.log_end_offset
            if log.advance_high_watermark(end):
                self.wake()

    def advance_with_followers(self) -> None:
        """The high watermark is the smallest log end of the in-sync replicas."""
        log, followers = self.log, self.followers
        if log is None or followers is None:
            return
        end = log.recovery_point if log.flush_due else log.log_end_offset
        offset = followers.high_watermark(
            log.high_watermark,
            end,
            min_isr=log.config.min_insync_replicas,
            max_lag_ms=self.max_lag_ms,
            now_ms=self.steady_ms(),
        )
        if log.advance_high_watermark(offset):
            self.wake()

    def on_follower_fetch(
        self, node: int, offset: int, log_start: int, *, broker_epoch: int
    ) -> IsrProposal | None:
        """A follower has everything before this offset. Returns the ISR to propose, if it may join now."""
        log, followers = self.log, self.followers
        if log is None or followers is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        end = log.log_end_offset
        if offset > end:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE
            )  # after an unclean election: what it has is not what is here
        before = followers.log_start_of(node)
        now_ms = self.steady_ms()
        if not followers.on_fetch(node, offset, log_start, end, broker_epoch=broker_epoch, now_ms=now_ms):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )  # it has been moved away from there, or replaced
        if log_start != before:
            self._wake_waiting()  # somebody may have deleted records
        proposal = (
            followers.propose_expansion(node, log.high_watermark, log.log_start_offset)
            if node not in self.isr
            else None
        )
        self.advance_with_followers()
        return proposal

    async def confirm_leadership(self, timeout_s: float) -> None:
        """Returns when this replica leads for certain, or did so after this call began: one that was replaced without knowing it is not followed any more, and
        must not tell as the last word what it has. Raises ApiError where it does not lead, or nobody confirms it in time."""
        for code in (await unconfirmed([self], timeout_s)).values():
            raise ApiError(code)

    # ---- waiting ---------------------------------------------------------------------------------

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

    def watch(self, watcher: Watcher, wanted: PartitionFetch) -> None:
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

    def tell_watchers(self) -> None:
        if self.watchers and not self.telling:
            self.telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def wake(self) -> None:
        self.tell_watchers()
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        if self.waiting:
            for waiter in list(self.waiting):
                waiter()

    def _tell(self) -> None:
        """Thousands of fetches may wait for one partition: those that the turn has no time for are told in the next."""
        self.telling = False
        if self.watchers:
            told = 0
            watchers = list(self.watchers.items())
            for watcher, wanted in watchers:
                watcher(wanted)
                told += 1  # noqa: SIM113 - enumerate would be one call more for every append
                if not told % _TOLD_AT_ONCE and not has_time():
                    asyncio.get_running_loop().call_soon(self._tell_rest, watchers, told)
                    return

    def _tell_rest(self, watchers: list[tuple[Watcher, PartitionFetch]], told: int) -> None:
        until = told + _TOLD_AT_ONCE
        for watcher, wanted in watchers[told:until]:
            if self.watchers is not None and watcher in self.watchers:
                watcher(wanted)
        if until < len(watchers):
            asyncio.get_running_loop().call_soon(self._tell_rest, watchers, until)


async def unconfirmed(partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, ErrorCode]:
    """Those of which nobody confirms in time that they are led here, and why. All are waited for together: where nothing is written, each may take as
    long as its followers wait for news."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    refused: dict[Partition, ErrorCode] = {}
    waiting = {partition: (partition.leader_epoch, dict[int, int]()) for partition in partitions}
    while True:
        for partition, (epoch, awaited) in list(waiting.items()):
            if partition.leader_epoch != epoch:
                refused[partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.followers is not None and not partition.followers.confirm(awaited):
                continue
            del waiting[partition]
        if not waiting:
            return refused
        if loop.time() >= until_s:
            return refused | dict.fromkeys(waiting, ErrorCode.REQUEST_TIMED_OUT)
        await asyncio.sleep(_CONFIRM_S * (1 + len(waiting) // _CONFIRM_AT_ONCE))
