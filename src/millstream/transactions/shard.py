"""One partition of ``__transaction_state``: decides about its transactional ids.

``decide_*`` methods only read. The host appends and applies the records of a decision; replies,
markers and timers follow as effects. An outcome is durable before a marker is sent. A transactional
id accepts no new producer or partition until every marker is durable. Requests in between get
CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from millstream.core.decisions import NOTHING, Arm, CoordinatorRecord, Decision, TimerKey, Waiter
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH, TopicPartition
from millstream.transactions import (
    answers,
    expiry,
    joining,
    listing,
    metadata,
    outcomes,
    producer_ids,
    timers,
)
from millstream.transactions.effects import (
    EndContinuation,
    InitContinuation,
    RememberEpoch,
    TimeoutContinuation,
)
from millstream.transactions.metadata import Producer, TransactionMetadata
from millstream.transactions.records import metadata_of
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard_state import ShardState, reply
from millstream.transactions.states import PREPARED, TransactionState
from millstream.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

# Only classic clients send AddOffsetsToTxn: under version 2 TxnOffsetCommit adds its partition
# itself.
_CLASSIC_CLIENT = 0


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, coordinator_epoch: int, settings: TransactionSettings) -> None:
        """Create an empty shard.

        Markers carry ``coordinator_epoch``, the partition's leader epoch.
        """
        self.state = ShardState(coordinator_epoch, settings)

    # ---- state ----

    @property
    def durable(self) -> dict[str, TransactionMetadata]:
        return dict(self.state.transactions)

    @property
    def settings(self) -> TransactionSettings:
        return self.state.settings

    @settings.setter
    def settings(self, settings: TransactionSettings) -> None:
        self.state.settings = settings

    def apply(self, record: CoordinatorRecord) -> None:
        transactions = self.state.transactions
        name = record.key.transactional_id
        before = transactions.get(name)
        after = None if record.value is None else metadata_of(record.value)
        self.state.memory.update(name, before, after)
        if after is None:
            transactions.pop(name, None)
        else:
            transactions[name] = after

    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None:
        """Apply the record.

        This topic has no transactional writes, so the producer id is ignored.
        """
        self.apply(record)

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        """Ignore the marker: this topic has no transactional writes."""

    def perform(self, effect: Any) -> None:
        assert isinstance(effect, RememberEpoch), effect
        if effect.epoch == NO_PRODUCER_EPOCH:
            self.state.last_epochs.pop(effect.transactional_id, None)
        else:
            self.state.last_epochs[effect.transactional_id] = effect.epoch

    def on_loaded(self, *, now_ms: int) -> Decision:
        """Resume after the log has been replayed.

        Markers of decided outcomes are sent, and deadlines run again.
        """
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        for name, known in self.state.transactions.items():
            if known.state in PREPARED:
                resumed = outcomes.carry_out(self.state, name, known, now_ms)
                records += resumed.records
                effects += resumed.effects
            elif known.has_deadline:
                effects.append(timers.arm_deadline(name, known, self.state.settings, now_ms))
        if self.state.transactions:
            full = self.state.surplus() > 0
            effects.append(
                Arm(timers.EXPIRY, now_ms)
                if full
                else timers.arm_expiry(self.state.settings, now_ms)
            )
        return Decision(tuple(records), tuple(effects))

    # ---- InitProducerId ----

    def decide_init_producer_id(
        self,
        request: InitProducerIdRequest,
        version: int,
        waiter: Waiter[InitProducerIdResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return producer_ids.decide(
            self.state, InitContinuation(request, version, waiter), None, now_ms
        )

    # ---- joining ----

    def decide_add_partitions(
        self,
        transaction: AddPartitionsToTxnTransaction,
        version: int,
        waiter: Waiter[AddPartitionsToTxnResult],
        *,
        now_ms: int,
    ) -> Decision:
        """Decide about one transaction of a request (see ``answers.transactions_of``).

        The reply is an AddPartitionsToTxnResult.
        """
        name = transaction.transactional_id
        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        partitions = answers.partitions_of(transaction)
        try:
            if transaction.verify_only:
                codes = joining.verify(self.state.known(name), producer, partitions)
                return reply(waiter, answers.partition_results(transaction, codes))
            client_version = joining.client_version(version)
            decision = _join(self.state, name, producer, partitions, client_version, now_ms)
        except ApiError as error:
            return reply(waiter, answers.partitions_result(transaction, error.code, version))
        return decision + reply(
            waiter, answers.partitions_result(transaction, ErrorCode.NONE, version)
        )

    def decide_add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        version: int,
        waiter: Waiter[AddOffsetsToTxnResponse],
        *,
        offsets_partition: TopicPartition,
        now_ms: int,
    ) -> Decision:
        """Add the ``offsets_partition``, which holds the offsets of the request's group."""
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            decision = _join(
                self.state,
                request.transactional_id,
                producer,
                (offsets_partition,),
                _CLASSIC_CLIENT,
                now_ms,
            )
        except ApiError as error:
            return reply(waiter, answers.add_offsets(error.code, version))
        return decision + reply(waiter, answers.add_offsets(ErrorCode.NONE, version))

    # ---- ending ----

    def decide_end_txn(
        self, request: EndTxnRequest, version: int, waiter: Waiter[EndTxnResponse], *, now_ms: int
    ) -> Decision:
        return outcomes.end(self.state, EndContinuation(request, version, waiter), None, now_ms)

    def decide_markers_written(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, now_ms: int
    ) -> Decision:
        """Complete the transaction after every marker of a SendMarkers is durable.

        Markers sent before the shard was loaded again are ignored.
        """
        known = self.state.transactions.get(transactional_id)
        marked = Producer(producer_id, producer_epoch)
        if (
            known is None
            or known.state not in PREPARED
            or marked != (known.producer_id, known.producer_epoch)
        ):
            return NOTHING
        return Decision((self.state.record(transactional_id, metadata.completed(known, now_ms)),))

    # ---- producer ids and timers ----

    def decide_producer_id(
        self,
        continuation: InitContinuation | EndContinuation | TimeoutContinuation,
        producer_id: int | None,
        *,
        now_ms: int,
    ) -> Decision:
        """Continue a request that waited for a producer id, from the current state.

        ``producer_id`` is None if none is available at the moment.
        """
        if isinstance(continuation, TimeoutContinuation):
            return (
                NOTHING
                if producer_id is None
                else outcomes.time_out(
                    self.state, continuation.transactional_id, producer_id, now_ms
                )
            )
        if isinstance(continuation, EndContinuation):
            if producer_id is None:
                return reply(
                    continuation.waiter,
                    answers.end_txn(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, continuation.version),
                )
            return outcomes.end(self.state, continuation, producer_id, now_ms)
        if producer_id is None:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return reply(continuation.waiter, answers.init_producer_id(code, continuation.version))
        return producer_ids.decide(self.state, continuation, producer_id, now_ms)

    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision:
        if key == timers.EXPIRY:
            return expiry.expire(self.state, now_ms)
        name = timers.transactional_id_of(key)
        assert name is not None, key
        return outcomes.time_out(self.state, name, None, now_ms)

    # ---- queries ----

    def decide_describe_transactions(
        self,
        request: DescribeTransactionsRequest,
        waiter: Waiter[DescribeTransactionsResponse],
        *,
        now_ms: int,
    ) -> Decision:
        """Describe the ids of a request that belong to this shard."""
        states = [
            listing.described(name, self.state.transactions.get(name))
            for name in request.transactional_ids
        ]
        return reply(waiter, DescribeTransactionsResponse(transaction_states=states))

    def ids(self) -> list[str]:
        """Return all transactional ids of the shard."""
        return list(self.state.transactions)

    def decide_list_transactions(
        self,
        request: ListTransactionsRequest,
        waiter: Waiter[ListTransactionsResponse],
        *,
        now_ms: int,
        transactional_ids: Iterable[str] | None = None,
    ) -> Decision:
        """List the given ids that still exist; without ``transactional_ids`` list all.

        ``listing.merged`` combines the responses of all shards.
        """
        selected = self.state.transactions
        if transactional_ids is not None:
            selected = {name: selected[name] for name in transactional_ids if name in selected}
        return reply(waiter, listing.listed(request, selected, now_ms))


def _join(
    state: ShardState,
    name: str,
    producer: Producer,
    partitions: Collection[TopicPartition],
    client_version: int,
    now_ms: int,
) -> Decision:
    known = state.known(name)
    joining.check_may_join(known, producer)
    if joining.all_joined(known, partitions):
        return NOTHING
    new = metadata.joined(known, partitions, client_version, now_ms)
    begins = known.state is not TransactionState.ONGOING and new.has_deadline
    effects = (timers.arm_deadline(name, new, state.settings, now_ms),) if begins else ()
    return Decision((state.record(name, new),), effects)
