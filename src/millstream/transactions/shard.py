"""One partition of ``__transaction_state``: decides about its transactional ids.

``decide_*`` methods only read. The host appends and applies the records of a decision; replies,
markers and timers follow as effects. An outcome is durable before a marker is sent. A transactional
id accepts no new producer or partition until every marker is durable. Requests in between get
CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from millstream.core.decisions import (
    NOTHING,
    Arm,
    CoordinatorRecord,
    Decision,
    Reply,
    Response,
    TimerKey,
    Waiter,
)
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH, TopicPartition
from millstream.transactions import (
    answers,
    ending,
    id_memory,
    initializing,
    joining,
    listing,
    metadata,
    timers,
)
from millstream.transactions.effects import (
    AllocateProducerId,
    EndContinuation,
    IdsFull,
    InitContinuation,
    RememberEpoch,
    SendMarkers,
    TimeoutContinuation,
)
from millstream.transactions.id_memory import IdMemory
from millstream.transactions.metadata import NO_TIMEOUT_MS, Producer, TransactionMetadata
from millstream.transactions.records import metadata_of, record_of, tombstone_of
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.states import PREPARED, TransactionState
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
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
from millstream.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

# Only classic clients send AddOffsetsToTxn: under version 2 TxnOffsetCommit adds its partition
# itself.
_CLASSIC_CLIENT = 0


@dataclass(slots=True)
class SoftState:
    """State that is lost when the coordinator changes."""

    # transactional id -> epoch of its producer before the last bump (for KIP-360 retries)
    last_epochs: dict[str, int] = field(default_factory=dict)


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, coordinator_epoch: int, settings: TransactionSettings) -> None:
        """Create an empty shard. Markers carry ``coordinator_epoch``, the partition's leader epoch."""
        self.coordinator_epoch = coordinator_epoch
        self.settings = settings
        self._transactions: dict[str, TransactionMetadata] = {}
        self._soft = SoftState()
        self._memory = IdMemory()

    # ---- state -----------------------------------------------------------------------------------

    @property
    def durable(self) -> dict[str, TransactionMetadata]:
        return dict(self._transactions)

    def apply(self, record: CoordinatorRecord) -> None:
        name = record.key.transactional_id
        before = self._transactions.get(name)
        after = None if record.value is None else metadata_of(record.value)
        self._memory.update(name, before, after)
        if after is None:
            self._transactions.pop(name, None)
        else:
            self._transactions[name] = after

    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None:
        """Apply the record. This topic has no transactional writes, so the producer id is ignored."""
        self.apply(record)

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        """Ignore the marker: this topic has no transactional writes."""

    def perform(self, effect: Any) -> None:
        assert isinstance(effect, RememberEpoch), effect
        if effect.epoch == NO_PRODUCER_EPOCH:
            self._soft.last_epochs.pop(effect.transactional_id, None)
        else:
            self._soft.last_epochs[effect.transactional_id] = effect.epoch

    def on_loaded(self, *, now_ms: int) -> Decision:
        """Resume after the log has been replayed.

        Markers of decided outcomes are sent, and deadlines run again.
        """
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        for name, known in self._transactions.items():
            if known.state in PREPARED:
                resumed = self._carry_out(name, known, now_ms)
                records += resumed.records
                effects += resumed.effects
            elif known.has_deadline:
                effects.append(timers.arm_deadline(name, known, self.settings, now_ms))
        if self._transactions:
            full = self._surplus() > 0
            effects.append(Arm(timers.EXPIRY, now_ms) if full else timers.arm_expiry(self.settings, now_ms))
        return Decision(tuple(records), tuple(effects))

    # ---- InitProducerId --------------------------------------------------------------------------

    def decide_init_producer_id(
        self,
        request: InitProducerIdRequest,
        version: int,
        waiter: Waiter[InitProducerIdResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return self._init(InitContinuation(request, version, waiter), None, now_ms)

    def _init(self, continuation: InitContinuation, fresh_id: int | None, now_ms: int) -> Decision:
        name = continuation.transactional_id
        try:
            intent = initializing.intent_of(continuation.request, self.settings)
            known = self._transactions.get(name)
            if known is None:
                return self._create(continuation, intent, fresh_id, now_ms)
            initializing.check(known, intent.expected, self._last_epoch(name))
        except ApiError as error:
            return _reply(continuation.waiter, answers.init_producer_id(error.code, continuation.version))
        if known.state is not TransactionState.ONGOING:
            return self._initialize(continuation, intent, known, fresh_id, now_ms)
        if intent.keep_prepared:
            return self._keep(continuation, intent, known, fresh_id, now_ms)
        return self._abort_open(continuation, known, fresh_id, now_ms)

    def _create(
        self, continuation: InitContinuation, intent: initializing.Intent, fresh_id: int | None, now_ms: int
    ) -> Decision:
        name = continuation.transactional_id
        names, room = self._memory.oldest_idle(self._surplus(id_memory.cost_of(name)))
        if not room:
            return self._reject(continuation, names, now_ms)
        if fresh_id is None:
            return Decision(effects=(AllocateProducerId(continuation),))
        new = metadata.created(fresh_id, intent.timeout_ms, now_ms)
        effects = (timers.arm_expiry(self.settings, now_ms), Reply(continuation.waiter, _initialized(new)))
        return self._expire_ids(names) + Decision((self._record(name, new),), effects)

    def _reject(self, continuation: InitContinuation, names: list[str], now_ms: int) -> Decision:
        """Reject a new id because the memory for ids is full.

        Clients retry. Ids that may expire do so now, to make room for the next attempt.
        """
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        effects: tuple[Any, ...] = (
            IdsFull(0, continuation.transactional_id),
            Reply(continuation.waiter, answers.init_producer_id(code, continuation.version)),
        )
        if names:
            effects = (Arm(timers.EXPIRY, now_ms), *effects)
        return self._expire_ids(names) + Decision(effects=effects)

    def _surplus(self, more: int = 0) -> int:
        """Return the bytes by which the ids, plus `more`, exceed the memory for them."""
        return self._memory.used + more - self.settings.transactional_ids_max_bytes

    def _expire_ids(self, names: list[str]) -> Decision:
        """Expire ids because of memory, with the same records as those that expire by time."""
        if not names:
            return NOTHING
        clear_epochs = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
        return Decision(tuple(map(tombstone_of, names)), (*clear_epochs, IdsFull(len(names))))

    def _initialize(
        self,
        continuation: InitContinuation,
        intent: initializing.Intent,
        known: TransactionMetadata,
        fresh_id: int | None,
        now_ms: int,
    ) -> Decision:
        """Start the producer with a bumped epoch, if no transaction is open."""
        name = continuation.transactional_id
        last = self._last_epoch(name)
        if fresh_id is None and initializing.needs_producer_id(known, intent.expected, last):
            return Decision(effects=(AllocateProducerId(continuation),))
        producer = initializing.next_producer(known, intent.expected, last, fresh_id)
        new = metadata.initialized(known, producer, intent.timeout_ms, now_ms)
        remember = RememberEpoch(name, initializing.next_last_epoch(known, intent.expected, last))
        return Decision((self._record(name, new),), (remember, Reply(continuation.waiter, _initialized(new))))

    def _abort_open(
        self, continuation: InitContinuation, known: TransactionMetadata, fresh_id: int | None, now_ms: int
    ) -> Decision:
        """Abort the open transaction first. The client retries until that is done."""
        if fresh_id is None and self._fencing_needs_id(known):
            return Decision(effects=(AllocateProducerId(continuation),))
        reply = Reply(
            continuation.waiter,
            answers.init_producer_id(ErrorCode.CONCURRENT_TRANSACTIONS, continuation.version),
        )
        return self._fence(continuation.transactional_id, known, fresh_id, now_ms, (reply,))

    def _keep(
        self,
        continuation: InitContinuation,
        intent: initializing.Intent,
        known: TransactionMetadata,
        fresh_id: int | None,
        now_ms: int,
    ) -> Decision:
        """Keep the open transaction until the client sends its outcome (KIP-939).

        Older clients are fenced.
        """
        if fresh_id is None and initializing.needs_producer_id(known, None, NO_PRODUCER_EPOCH):
            return Decision(effects=(AllocateProducerId(continuation),))
        name = continuation.transactional_id
        client = initializing.next_producer(known, None, NO_PRODUCER_EPOCH, fresh_id)
        no_timeout = intent.timeout_ms == NO_TIMEOUT_MS
        new = metadata.kept_for(known, client, intent.timeout_ms if no_timeout else known.timeout_ms, now_ms)
        stop = (timers.disarm_deadline(name),) if no_timeout else ()
        clear_epoch = RememberEpoch(name, NO_PRODUCER_EPOCH)
        return Decision(
            (self._record(name, new),), (clear_epoch, *stop, Reply(continuation.waiter, _taken_over(new)))
        )

    # ---- joining ---------------------------------------------------------------------------------

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
                codes = joining.verify(self._known(name), producer, partitions)
                return _reply(waiter, answers.partition_results(transaction, codes))
            client_version = joining.client_version(version)
            decision = self._join(name, producer, partitions, client_version, now_ms)
        except ApiError as error:
            return _reply(waiter, answers.partitions_result(transaction, error.code, version))
        return decision + _reply(waiter, answers.partitions_result(transaction, ErrorCode.NONE, version))

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
            decision = self._join(
                request.transactional_id, producer, (offsets_partition,), _CLASSIC_CLIENT, now_ms
            )
        except ApiError as error:
            return _reply(waiter, answers.add_offsets(error.code, version))
        return decision + _reply(waiter, answers.add_offsets(ErrorCode.NONE, version))

    def _join(
        self,
        name: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> Decision:
        known = self._known(name)
        joining.check_may_join(known, producer)
        if joining.all_joined(known, partitions):
            return NOTHING
        new = metadata.joined(known, partitions, client_version, now_ms)
        begins = known.state is not TransactionState.ONGOING and new.has_deadline
        effects = (timers.arm_deadline(name, new, self.settings, now_ms),) if begins else ()
        return Decision((self._record(name, new),), effects)

    # ---- ending ----------------------------------------------------------------------------------

    def decide_end_txn(
        self, request: EndTxnRequest, version: int, waiter: Waiter[EndTxnResponse], *, now_ms: int
    ) -> Decision:
        return self._end(EndContinuation(request, version, waiter), None, now_ms)

    def _end(self, continuation: EndContinuation, fresh_id: int | None, now_ms: int) -> Decision:
        request = continuation.request
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            known = self._known(request.transactional_id)
            outcome = ending.ending_of(known, producer, request.committed, continuation.version)
        except ApiError as error:
            return _reply(continuation.waiter, answers.end_txn(error.code, continuation.version))
        client_version = ending.client_version(continuation.version)
        if outcome is ending.Ending.DONE:
            return _reply(continuation.waiter, _ended(known, client_version))
        if fresh_id is None and metadata.needs_producer_id(known, client_version):
            return Decision(effects=(AllocateProducerId(continuation),))
        new = metadata.prepared(
            known,
            commit=request.committed,
            client_version=client_version,
            fresh_id=fresh_id,
            now_ms=now_ms,
        )
        reply = Reply(continuation.waiter, _ended(metadata.completed(new, now_ms), client_version))
        last = known.client.epoch if client_version >= metadata.EPOCH_PER_TRANSACTION else None
        return self._prepare(request.transactional_id, known, new, last, now_ms, (reply,))

    def _fence(
        self,
        name: str,
        known: TransactionMetadata,
        fresh_id: int | None,
        now_ms: int,
        follow_up: tuple[Any, ...],
    ) -> Decision:
        """Abort an ongoing transaction on the coordinator's initiative."""
        server_version = self.settings.transaction_version
        new = metadata.fenced(known, server_version, fresh_id, now_ms)
        bumps = metadata.fence_version(known, server_version) >= metadata.EPOCH_PER_TRANSACTION
        last = known.client.epoch if bumps else NO_PRODUCER_EPOCH
        return self._prepare(name, known, new, last, now_ms, follow_up)

    def _fencing_needs_id(self, known: TransactionMetadata) -> bool:
        version = metadata.fence_version(known, self.settings.transaction_version)
        return metadata.needs_producer_id(known, version)

    def _prepare(
        self,
        name: str,
        known: TransactionMetadata,
        new: TransactionMetadata,
        last_epoch: int | None,
        now_ms: int,
        follow_up: tuple[Any, ...],
    ) -> Decision:
        """Make the outcome durable; replies and markers follow after that."""
        remember = () if last_epoch is None else (RememberEpoch(name, last_epoch),)
        stop = (timers.disarm_deadline(name),) if known.has_deadline else ()
        decided = Decision((self._record(name, new),), (*remember, *stop, *follow_up))
        return decided + self._carry_out(name, new, now_ms)

    def _carry_out(self, name: str, new: TransactionMetadata, now_ms: int) -> Decision:
        if not new.partitions:
            return Decision((self._record(name, metadata.completed(new, now_ms)),))
        return Decision(effects=(self._markers(name, new),))

    def _markers(self, name: str, new: TransactionMetadata) -> SendMarkers:
        return SendMarkers(
            transactional_id=name,
            producer_id=new.producer_id,
            producer_epoch=new.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            commit=new.commits,
            partitions=tuple(sorted(new.partitions)),
            transaction_version=new.client_transaction_version,
        )

    def decide_markers_written(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, now_ms: int
    ) -> Decision:
        """Complete the transaction after every marker of a SendMarkers is durable.

        Markers sent before the shard was loaded again are ignored.
        """
        known = self._transactions.get(transactional_id)
        marked = Producer(producer_id, producer_epoch)
        if (
            known is None
            or known.state not in PREPARED
            or marked != (known.producer_id, known.producer_epoch)
        ):
            return NOTHING
        return Decision((self._record(transactional_id, metadata.completed(known, now_ms)),))

    # ---- producer ids and timers -----------------------------------------------------------------

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
                else self._time_out(continuation.transactional_id, producer_id, now_ms)
            )
        if isinstance(continuation, EndContinuation):
            if producer_id is None:
                return _reply(
                    continuation.waiter,
                    answers.end_txn(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, continuation.version),
                )
            return self._end(continuation, producer_id, now_ms)
        if producer_id is None:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return _reply(continuation.waiter, answers.init_producer_id(code, continuation.version))
        return self._init(continuation, producer_id, now_ms)

    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision:
        if key == timers.EXPIRY:
            return self._expire(now_ms)
        name = timers.transactional_id_of(key)
        assert name is not None, key
        return self._time_out(name, None, now_ms)

    def _time_out(self, name: str, fresh_id: int | None, now_ms: int) -> Decision:
        known = self._transactions.get(name)
        if known is None or not known.has_deadline:
            return NOTHING
        if not timers.overdue(known, now_ms):
            return Decision(effects=(timers.arm_deadline(name, known, self.settings, now_ms),))
        if fresh_id is None and self._fencing_needs_id(known):
            # The timer runs again while the transaction is open, even if the allocation fails.
            rearm = timers.retry_deadline(name, self.settings, now_ms)
            return Decision(effects=(rearm, AllocateProducerId(TimeoutContinuation(name))))
        return self._fence(name, known, fresh_id, now_ms, ())

    def _expire(self, now_ms: int) -> Decision:
        names, more = timers.expired(self._transactions, self.settings, now_ms)
        if not names and self._surplus() > 0:
            return self._expire_early(now_ms)
        clear_epochs = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
        rearm: tuple[Arm, ...] = ()
        if more or self._surplus() > 0:
            rearm = (Arm(timers.EXPIRY, now_ms),)
        elif len(names) < len(self._transactions):
            rearm = (timers.arm_expiry(self.settings, now_ms),)
        return Decision(tuple(tombstone_of(name) for name in names), (*clear_epochs, *rearm))

    def _expire_early(self, now_ms: int) -> Decision:
        """Expire a slice of the surplus ids, after loading or after the limit was lowered."""
        names, enough = self._memory.oldest_idle(self._surplus())
        wait = enough or not names
        rearm = timers.arm_expiry(self.settings, now_ms) if wait else Arm(timers.EXPIRY, now_ms)
        return self._expire_ids(names) + Decision(effects=(rearm,))

    # ---- queries ---------------------------------------------------------------------------------

    def decide_describe_transactions(
        self,
        request: DescribeTransactionsRequest,
        waiter: Waiter[DescribeTransactionsResponse],
        *,
        now_ms: int,
    ) -> Decision:
        """Describe the ids of a request that belong to this shard."""
        states = [listing.described(name, self._transactions.get(name)) for name in request.transactional_ids]
        return _reply(waiter, DescribeTransactionsResponse(transaction_states=states))

    def ids(self) -> list[str]:
        """Return all transactional ids of the shard."""
        return list(self._transactions)

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
        selected = self._transactions
        if transactional_ids is not None:
            selected = {name: selected[name] for name in transactional_ids if name in selected}
        return _reply(waiter, listing.listed(request, selected, now_ms))

    # ---- small helpers ---------------------------------------------------------------------------

    def _known(self, transactional_id: str) -> TransactionMetadata:
        joining.check_id(transactional_id)
        return joining.known(self._transactions.get(transactional_id))

    def _last_epoch(self, transactional_id: str) -> int:
        return self._soft.last_epochs.get(transactional_id, NO_PRODUCER_EPOCH)

    def _record(self, transactional_id: str, new: TransactionMetadata) -> CoordinatorRecord:
        return record_of(transactional_id, new, self.settings.transaction_version)


def _reply(waiter: Waiter[Response], response: Response) -> Decision:
    return Decision(effects=(Reply(waiter, response),))


def _initialized(new: TransactionMetadata) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=new.producer_id, producer_epoch=new.producer_epoch)


def _taken_over(new: TransactionMetadata) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=new.client.id,
        producer_epoch=new.client.epoch,
        ongoing_txn_producer_id=new.producer_id,
        ongoing_txn_producer_epoch=new.producer_epoch,
    )


def _ended(known: TransactionMetadata, client_version: int) -> EndTxnResponse:
    if client_version < metadata.EPOCH_PER_TRANSACTION:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=known.client.id, producer_epoch=known.client.epoch)
