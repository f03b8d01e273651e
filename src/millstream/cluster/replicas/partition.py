"""One replica on this broker: its log, its role, and the states it goes through.

A ``Partition`` exists from the moment the image assigns a replica to this broker until the image
takes it away. In between it is in one of these states:

* **offline**: ``log`` is None. Its directory failed, its log is damaged, or could not be created.
* **leaderless**: ``leader`` is NO_LEADER. It keeps its log and waits.
* **follower**: another broker leads. A fetcher appends what that leader sends. The replica is in
  sync if the ISR includes this broker.
* **leader**: this broker leads. With other replicas, ``followers`` has their progress. Without any
  it is None, and the log's own end is the high watermark.

**Transitions.** The controller decides the leader, the leader epoch and the ISR. It writes them to
the state node of the partition, whose version is the partition epoch. The feed brings them to all
brokers, and ``ReplicaRoles.assume`` calls ``lead`` or ``follow`` here. There are two exceptions. A
leader proposes ISR changes (``IsrManager``), and the controller's response may set ``isr`` and
``partition_epoch`` before the feed does. And a replica goes offline without the controller: the
broker reports it with its next feed request, and the controller elects another leader. A replica
in a failed directory, or with a damaged log, stays offline until a restart. A log that could not be
created is retried.

**Storage.** The state node has leader, epochs and ISR; this broker keeps no copy on disk. The log's
batches carry the leader epoch in which they were written. ``leader-epoch-checkpoint`` has the
offset at which each epoch began: ``begin_epoch`` adds the entry of a new leader before its first
append, a follower adds entries as batches arrive. ``replication-offset-checkpoint`` has the high
watermark; it is written from time to time and may be behind. ``partition.metadata`` has the topic
id. The progress of followers, the waiters and the pending sequences of producers are only in
memory. A new leader learns the progress from the next fetches, and until then its high watermark
stays.

**Invariants.** These must never happen:

* An epoch decreases. A state with a lower epoch is metadata restored from a backup. It is not
  followed, because a leader of that epoch would truncate acknowledged records.
* The high watermark passes the log end of an ISR member, of the current ISR or of a proposed one
  (KIP-497), or records that flush.messages requires on disk and that are not there yet.
* A deposed leader acknowledges a record with acks=all. Its followers fetch from the new leader, so
  its high watermark stands still. For reads that must be current, ``confirm_leadership`` waits for
  fetches that were sent after the request.
* A waiter takes another leader's record for its own. ``leader_since_epoch`` is the first epoch of
  the current leader's uninterrupted leadership. If it has changed since the append, the offset may
  hold a different record, and the waiter gets an error. A new epoch of the same leader, as after a
  reassignment, does not disturb waiters.
* A follower truncates to its own high watermark, which is a fetch behind (KIP-101). It truncates
  where its epochs and the leader's diverge.
* An empty log replaces a lost one unnoticed. At startup a missing log is not created while a
  directory is offline. A broker that may lack the end of its logs reports it when it registers,
  and leaves the ISR wherever another member remains.
* A log is deleted because the metadata no longer has it. A topic is deleted only if its deletion
  is recorded; otherwise its logs are kept (``ReplicaHosting``).

See ``docs/internals/replication.md`` for the high watermark, epochs and elections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from millstream.cluster.replicas.pending_sequences import (
    BEGINNING,
    HANDOVER_MS,
    GivenUp,
    PendingSequences,
    ProducerBatch,
    Rejection,
    is_transactional,
    producer_batch,
)
from millstream.cluster.replicas.waiters import PartitionWaiters
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.partition_log import AppendResult, PartitionLog
from millstream.log.producers.state import Origin, Verification, comes_after
from millstream.replication.leader import IsrProposal, LeaderReplicas

# Interval of the checks whether followers have confirmed the leader, for this many partitions at a
# time. With more partitions the interval is longer.
_CONFIRM_S = 0.005
_CONFIRMED_PER_CHECK = 100

# Kafka's responses with these errors have no log start offset. All others have one: after
# UNKNOWN_PRODUCER_ID the Java client compares it with its last acknowledged offset, and retries
# forever while it is unknown.
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


def _no_time() -> int:
    """The clock of a replica that has never led."""
    return 0


class Partition:
    """A hosted replica. ``log`` is None while it is offline."""

    __slots__ = (
        "followers",
        "handover_until_ms",
        "isr",
        "leader",
        "leader_epoch",
        "leader_since_epoch",
        "log",
        "max_lag_ms",
        "partition_epoch",
        "pending",
        "steady_ms",
        "topic_id",
        "tp",
        "waiters",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: bytes,
        log: PartitionLog | None,
        pending: PendingSequences,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.leader = NO_LEADER
        self.leader_epoch = 0
        # The first epoch of the current leader without interruption. A new epoch because a replica
        # was removed has the same leader, and the same log.
        self.leader_since_epoch = 0
        self.partition_epoch = -1
        self.isr: tuple[int, ...] = ()
        # The other replicas, while this one leads and there are any.
        self.followers: LeaderReplicas | None = None
        self.max_lag_ms = 0
        self.steady_ms: Callable[[], int] = _no_time
        self.pending = pending
        # Until then the predecessor of a producer's batch may have been sent to another leader; 0
        # if there was none.
        self.handover_until_ms = 0
        self.waiters = PartitionWaiters()

    @property
    def online_log(self) -> PartitionLog:
        if self.log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.log

    def check_epoch(self, epoch: int) -> None:
        """Reject a client or replica that knows another epoch (KIP-320).

        It must refresh its metadata first.
        """
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # ---- appending as leader ----

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
        """Append as leader, advance the high watermark, and wake its waiters."""
        log = self.online_log
        try:
            doubtful = self.replica_count > 1 or self.pending.any or self.handover_until_ms
            if doubtful and origin is Origin.CLIENT:
                self._check_predecessor(records, log)
            if needs_all:
                self.check_min_isr()
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
                self._on_rejected(records, log, error)
                if error.code not in _WITHOUT_LOG_START:
                    error.log_start_offset = log.log_start_offset
            raise
        if self.pending.any:
            self._record_written(records)
        if not result.duplicate:
            if self.followers is not None:
                self.advance_with_followers()
                # Followers read up to the log end.
                self.waiters.notify_watchers()
            else:
                self.advance_alone()
        return result

    def _check_predecessor(self, records: memoryview, log: PartitionLog) -> None:
        """Reject a batch whose predecessor may still arrive.

        The log accepts any sequence from an unknown producer. Its previous batch may have been
        rejected here or, if there are other replicas, by one that a client took for the leader.
        """
        if self.handover_until_ms and self.steady_ms() > self.handover_until_ms:
            self.handover_until_ms = 0
        batch = producer_batch(records)
        if batch is None or batch.sequence <= 0:
            return
        if log.producer_state.knows(batch.producer_id):
            if (self.pending.any or self.handover_until_ms) and is_transactional(records):
                self._check_overtaking(batch, log)
            return
        # A producer with a higher sequence has expired: its records are old, or it was silent for
        # a long time.
        starting = batch.sequence < BEGINNING
        rejection = self._missing_before(batch, -1, elsewhere=starting and self.replica_count > 1)
        if rejection is not None:
            raise ApiError(*rejection)

    def _check_overtaking(self, batch: ProducerBatch, log: PartitionLog) -> None:
        """Reject the first batch of a transaction while another batch may precede it.

        librdkafka reuses the sequences of an aborted batch. If the first batch of the next
        transaction was rejected, here or by the previous leader, its second batch may arrive first,
        and fits behind the aborted batch. Its acknowledgement would count for the first batch as
        well, which would be missing from the commit.
        """
        producer = log.producer_state.producers[batch.producer_id]
        last_offset = producer.ended_right_before(batch.epoch, batch.sequence)
        if last_offset < 0:
            return
        rejection = self._rejection_before(batch, -1)
        if rejection is None and self.handover_until_ms and last_offset < log.epochs.starts[-1]:
            rejection = self.pending.sent_elsewhere(*self.tp, batch, self.leader_since_epoch)
        if rejection:
            raise ApiError(*rejection)

    def _on_rejected(self, records: memoryview, log: PartitionLog, error: ApiError) -> None:
        """Record a rejected batch for the batches behind it, or raise the error to send instead."""
        batch = producer_batch(records)
        if batch is None:
            return
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.pending.record_rejection(self.tp.topic, self.tp.partition, batch, error)
            return
        last = log.producer_state.last_sequence(batch.producer_id, batch.epoch)
        if last >= 0 and not comes_after(batch.sequence, last):
            return  # an old batch: nothing is missing before it
        rejection = self._missing_before(batch, last, elsewhere=False)
        if rejection is not None:
            raise ApiError(*rejection)

    def _missing_before(
        self, batch: ProducerBatch, written: int, *, elsewhere: bool
    ) -> Rejection | None:
        """Return the rejection of a batch that does not follow sequence ``written``.

        It is None if the missing batch will not arrive any more.
        """
        rejection = self._rejection_before(batch, written)
        if rejection is not None:
            return rejection or None
        if elsewhere or self.handover_until_ms:
            return self.pending.sent_elsewhere(*self.tp, batch, self.leader_since_epoch)
        return None

    def _rejection_before(self, batch: ProducerBatch, written: int) -> Rejection | GivenUp | None:
        for topic in (self.tp.topic, self.topic_id):
            rejection = self.pending.rejection_before(topic, self.tp.partition, batch, written)
            if rejection is not None:
                return rejection
        return None

    def _record_written(self, records: memoryview) -> None:
        batch = producer_batch(records)
        if batch is not None:
            self.pending.record_written(self.tp.topic, self.topic_id, self.tp.partition, batch)

    def check_min_isr(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS if the ISR is smaller than min.insync.replicas.

        As in Kafka, no more than the existing replicas are required. Otherwise a topic with one
        replica would never accept a record if the brokers' min.insync.replicas is two.
        """
        needed = self.online_log.config.min_insync_replicas
        if len(self.isr) < needed and len(self.isr) < self.replica_count:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR : {len(self.isr)} is insufficient to satisfy the min.isr requirement "
                f"of {min(needed, self.replica_count)} for partition {self.tp}",
            )

    @property
    def replica_count(self) -> int:
        """The number of replicas, known while this one leads."""
        return 1 if self.followers is None else len(self.followers.followers) + 1

    # ---- role ----

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
        """Lead in this state; return whether that is a new epoch, which starts at the log end.

        ``steady_ms`` is a monotonic clock, which measures the lag of followers.
        """
        new = self.leader != node_id or self.leader_epoch != state.leader_epoch
        if new and self._another_may_have_led(node_id, state, replicas):
            self.handover_until_ms = steady_ms() + HANDOVER_MS
        # The controller's response to an ISR proposal may be ahead of its feed.
        if new or state.partition_epoch >= self.partition_epoch:
            self._set_state(state)
        self.steady_ms, self.max_lag_ms = steady_ms, max_lag_ms
        log = self.log
        if log is None:
            self.followers = None
            return new
        # Without followers in the same epoch: the log may have come online only now.
        if new or self.followers is None:
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
            # A follower that has left the ISR must fetch to show its progress.
            self.waiters.notify_watchers()
        self.advance_high_watermark()
        if log.flush_due:
            log.ask_flush()
        if new:
            # Waiters of an older epoch get an error.
            self.waiters.wake()
        return new

    def _another_may_have_led(
        self, node_id: int, state: PartitionState, replicas: Sequence[int]
    ) -> bool:
        """Return whether another broker may have led before, unknown to this one.

        That is not so for a new topic, and for the only replica of a broker that restarts.
        """
        if self.leader == node_id:
            return state.leader_epoch > self.leader_epoch + 1
        return state.leader_epoch > 0 and (self.leader != NO_LEADER or len(replicas) > 1)

    def begin_epoch(self) -> None:
        """Record that this leader's epoch starts at the log end, unless it has records already.

        Followers that fetch with an epoch in between learn from it where the histories diverge. To
        start at the high watermark instead would lose records. This is called again when a
        truncation that was interrupted before the election is finished: the truncation removes the
        entry with the records.
        """
        log = self.online_log
        log.epochs.assign(self.leader_epoch, log.log_end_offset)
        if self.followers is not None and self.followers.leader_epoch == self.leader_epoch:
            self.followers.epoch_start = log.epochs.starts[-1]

    def follow(self, state: PartitionState) -> None:
        """Follow the leader of this state, which may have none."""
        self.followers = None
        self._set_state(state)
        self.waiters.wake()

    def _set_state(self, state: PartitionState) -> None:
        # Another leader always has another epoch. So no other broker can have led between two
        # consecutive epochs of the same leader.
        if state.leader != self.leader or state.leader_epoch > self.leader_epoch + 1:
            self.leader_since_epoch = state.leader_epoch
        self.leader, self.leader_epoch, self.isr = state.leader, state.leader_epoch, state.isr
        self.partition_epoch = state.partition_epoch

    # ---- the high watermark ----

    def advance_high_watermark(self) -> None:
        if self.followers is not None:
            self.advance_with_followers()
        else:
            self.advance_alone()

    def advance_alone(self) -> None:
        """Advance the high watermark of the only replica to its log end.

        If flush.messages is reached it waits for the disk: no client and no coordinator may see
        records that a power cut could remove.
        """
        log = self.log
        if log is not None and self.followers is None and len(self.isr) == 1:
            end = log.recovery_point if log.flush_due else log.log_end_offset
            if log.advance_high_watermark(end):
                self.waiters.wake()

    def advance_with_followers(self) -> None:
        """Advance the high watermark to the smallest log end of the in-sync replicas."""
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
            self.waiters.wake()

    def on_follower_fetch(
        self, node: int, offset: int, log_start: int, *, broker_epoch: int
    ) -> IsrProposal | None:
        """Record that a follower has all records before ``offset``.

        Return the ISR to propose if the follower may join now.
        """
        log, followers = self.log, self.followers
        if log is None or followers is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        end = log.log_end_offset
        if offset > end:
            # After an unclean election: its records are not those of this leader.
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        before = followers.log_start_of(node)
        now_ms = self.steady_ms()
        if not followers.on_fetch(
            node, offset, log_start, end, broker_epoch=broker_epoch, now_ms=now_ms
        ):
            # The replica was reassigned, or its broker has restarted since.
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if log_start != before:
            # A client may wait until deleted records are gone from all replicas.
            self.waiters.wake_waiters()
        proposal = (
            followers.propose_expansion(node, log.high_watermark, log.log_start_offset)
            if node not in self.isr
            else None
        )
        self.advance_with_followers()
        return proposal

    async def confirm_leadership(self, timeout_s: float) -> None:
        """Return when this replica certainly led at some time after this call began.

        A deposed leader that has not noticed yet has no followers, so its answer must not be
        authoritative. Raise ApiError if it does not lead, or its followers do not confirm it in
        time.
        """
        for code in (await unconfirmed_leaders([self], timeout_s)).values():
            raise ApiError(code)


async def unconfirmed_leaders(
    partitions: Iterable[Partition], timeout_s: float
) -> dict[Partition, ErrorCode]:
    """Return the partitions whose leadership here is not confirmed in time, and why.

    All are awaited together: without appends, each may take as long as its followers' fetches wait.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    errors: dict[Partition, ErrorCode] = {}
    waiting = {partition: (partition.leader_epoch, dict[int, int]()) for partition in partitions}
    while True:
        for partition, (epoch, awaited) in list(waiting.items()):
            if partition.leader_epoch != epoch:
                errors[partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.followers is not None and not partition.followers.confirm(awaited):
                continue
            del waiting[partition]
        if not waiting:
            return errors
        if loop.time() >= until_s:
            return errors | dict.fromkeys(waiting, ErrorCode.REQUEST_TIMED_OUT)
        await asyncio.sleep(_CONFIRM_S * (1 + len(waiting) // _CONFIRMED_PER_CHECK))
