"""One partition of ``__transaction_state``: decides about its transactional ids, and applies what was decided.

``decide_*`` only reads. Records are applied and appended by the host; replies, markers and timers follow as effects. An outcome is
durable before a marker goes out, and a transactional id takes no new producer or partition until every marker is: requests that
come in between hear CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from millstream.core.decisions import NOTHING, Arm, CoordinatorRecord, Decision, Reply, TimerKey, Waiter
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
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTransaction
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.list_transactions import ListTransactionsRequest

# AddOffsetsToTxn is sent by classic clients alone: under version 2 TxnOffsetCommit adds its partition itself.
_CLASSIC_CLIENT = 0


@dataclass(slots=True)
class SoftState:
    """What a coordinator that takes over does without."""

    # transactional id -> the epoch its producer had before the last bump (KIP-360 retries)
    last_epochs: dict[str, int] = field(default_factory=dict)


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, coordinator_epoch: int, settings: TransactionSettings) -> None:
        """``coordinator_epoch`` is the leader epoch of the partition: markers carry it."""
        self.coordinator_epoch = coordinator_epoch
        self.settings = settings
        self._transactions: dict[str, TransactionMetadata] = {}
        self._soft = SoftState()
        self._memory = IdMemory()

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def durable(self) -> dict[str, TransactionMetadata]:
        return dict(self._transactions)

    def apply(self, record: CoordinatorRecord) -> None:
        name = record.key.transactional_id
        before = self._transactions.get(name)
        after = None if record.value is None else metadata_of(record.value)
        self._memory.note(name, before, after)
        if after is None:
            self._transactions.pop(name, None)
        else:
            self._transactions[name] = after

    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None:
        """Nobody writes transactionally to this topic; a record is a record."""
        self.apply(record)

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        """And so no marker means anything here."""

    def perform(self, effect: Any) -> None:
        assert isinstance(effect, RememberEpoch), effect
        if effect.epoch == NO_PRODUCER_EPOCH:
            self._soft.last_epochs.pop(effect.transactional_id, None)
        else:
            self._soft.last_epochs[effect.transactional_id] = effect.epoch

    def on_loaded(self, *, now_ms: int) -> Decision:
        """After replay: outcomes that were decided are carried out, deadlines run again."""
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

    # ---- InitProducerId -------------------------------------------------------------------------------------

    def decide_init_producer_id(
        self, request: InitProducerIdRequest, version: int, waiter: Waiter, *, now_ms: int
    ) -> Decision:
        return self._init(InitContinuation(request, version, waiter), None, now_ms)

    def _init(self, asked: InitContinuation, fresh_id: int | None, now_ms: int) -> Decision:
        name = asked.request.transactional_id
        try:
            intent = initializing.intent_of(asked.request, self.settings)
            known = self._transactions.get(name)
            if known is None:
                return self._create(asked, intent, fresh_id, now_ms)
            initializing.check(known, intent.expected, self._last_epoch(name))
        except ApiError as refusal:
            return _answer(asked.waiter, answers.init_producer_id(refusal.code, asked.version))
        if known.state is not TransactionState.ONGOING:
            return self._initialize(asked, intent, known, fresh_id, now_ms)
        if intent.keep_prepared:
            return self._keep(asked, intent, known, fresh_id, now_ms)
        return self._shut_out(asked, known, fresh_id, now_ms)

    def _create(
        self, asked: InitContinuation, intent: initializing.Intent, fresh_id: int | None, now_ms: int
    ) -> Decision:
        name = asked.request.transactional_id
        names, room = self._memory.oldest_idle(self._surplus(id_memory.cost_of(name)))
        if not room:
            return self._refuse(asked, names, now_ms)
        if fresh_id is None:
            return Decision(effects=(AllocateProducerId(asked),))
        new = metadata.created(fresh_id, intent.timeout_ms, now_ms)
        effects = (timers.arm_expiry(self.settings, now_ms), Reply(asked.waiter, _initialized(new)))
        return self._forget_early(names) + Decision((self._record(name, new),), effects)

    def _refuse(self, asked: InitContinuation, names: list[str], now_ms: int) -> Decision:
        """No room for another id in this turn. Clients retry; ids that may go are expired for the next attempt."""
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        effects: tuple[Any, ...] = (
            IdsFull(0, asked.request.transactional_id),
            Reply(asked.waiter, answers.init_producer_id(code, asked.version)),
        )
        if names:
            effects = (Arm(timers.EXPIRY, now_ms), *effects)
        return self._forget_early(names) + Decision(effects=effects)

    def _surplus(self, more: int = 0) -> int:
        """The bytes by which the ids, and `more`, exceed the memory for them."""
        return self._memory.used + more - self.settings.transactional_ids_max_bytes

    def _forget_early(self, names: list[str]) -> Decision:
        """Expires ids for want of memory, by the same records as by time."""
        if not names:
            return NOTHING
        forget = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
        return Decision(tuple(map(tombstone_of, names)), (*forget, IdsFull(len(names))))

    def _initialize(
        self,
        asked: InitContinuation,
        intent: initializing.Intent,
        known: TransactionMetadata,
        fresh_id: int | None,
        now_ms: int,
    ) -> Decision:
        """No transaction is open: the producer begins under a bumped epoch."""
        name = asked.request.transactional_id
        last = self._last_epoch(name)
        if fresh_id is None and initializing.needs_producer_id(known, intent.expected, last):
            return Decision(effects=(AllocateProducerId(asked),))
        producer = initializing.next_producer(known, intent.expected, last, fresh_id)
        new = metadata.initialized(known, producer, intent.timeout_ms, now_ms)
        remember = RememberEpoch(name, initializing.next_last_epoch(known, intent.expected, last))
        return Decision((self._record(name, new),), (remember, Reply(asked.waiter, _initialized(new))))

    def _shut_out(
        self, asked: InitContinuation, known: TransactionMetadata, fresh_id: int | None, now_ms: int
    ) -> Decision:
        """A transaction is open: it is aborted first, and the client comes again until that is done."""
        if fresh_id is None and self._fencing_needs_id(known):
            return Decision(effects=(AllocateProducerId(asked),))
        reply = Reply(
            asked.waiter, answers.init_producer_id(ErrorCode.CONCURRENT_TRANSACTIONS, asked.version)
        )
        return self._fence(asked.request.transactional_id, known, fresh_id, now_ms, (reply,))

    def _keep(
        self,
        asked: InitContinuation,
        intent: initializing.Intent,
        known: TransactionMetadata,
        fresh_id: int | None,
        now_ms: int,
    ) -> Decision:
        """KIP-939: the open transaction waits for the outcome that only its client knows; older clients are fenced."""
        if fresh_id is None and initializing.needs_producer_id(known, None, NO_PRODUCER_EPOCH):
            return Decision(effects=(AllocateProducerId(asked),))
        name = asked.request.transactional_id
        client = initializing.next_producer(known, None, NO_PRODUCER_EPOCH, fresh_id)
        endless = intent.timeout_ms == NO_TIMEOUT_MS
        new = metadata.kept_for(known, client, intent.timeout_ms if endless else known.timeout_ms, now_ms)
        stop = (timers.disarm_deadline(name),) if endless else ()
        forget = RememberEpoch(name, NO_PRODUCER_EPOCH)
        return Decision((self._record(name, new),), (forget, *stop, Reply(asked.waiter, _taken_over(new))))

    # ---- joining --------------------------------------------------------------------------------------------

    def decide_add_partitions(
        self, transaction: AddPartitionsToTxnTransaction, version: int, waiter: Waiter, *, now_ms: int
    ) -> Decision:
        """One transaction of a request (``answers.transactions_of``); the reply is an AddPartitionsToTxnResult."""
        name = transaction.transactional_id
        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        partitions = answers.partitions_of(transaction)
        try:
            if transaction.verify_only:
                codes = joining.verify(self._known(name), producer, partitions)
                return _answer(waiter, answers.partition_results(transaction, codes))
            client_version = joining.client_version(version)
            decision = self._join(name, producer, partitions, client_version, now_ms)
        except ApiError as refusal:
            return _answer(waiter, answers.partitions_result(transaction, refusal.code, version))
        return decision + _answer(waiter, answers.partitions_result(transaction, ErrorCode.NONE, version))

    def decide_add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        version: int,
        waiter: Waiter,
        *,
        offsets_partition: TopicPartition,
        now_ms: int,
    ) -> Decision:
        """``offsets_partition`` is where the group of the request keeps its offsets."""
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            decision = self._join(
                request.transactional_id, producer, (offsets_partition,), _CLASSIC_CLIENT, now_ms
            )
        except ApiError as refusal:
            return _answer(waiter, answers.add_offsets(refusal.code, version))
        return decision + _answer(waiter, answers.add_offsets(ErrorCode.NONE, version))

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

    # ---- ending ---------------------------------------------------------------------------------------------

    def decide_end_txn(
        self, request: EndTxnRequest, version: int, waiter: Waiter, *, now_ms: int
    ) -> Decision:
        return self._end(EndContinuation(request, version, waiter), None, now_ms)

    def _end(self, asked: EndContinuation, fresh_id: int | None, now_ms: int) -> Decision:
        request = asked.request
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            known = self._known(request.transactional_id)
            what = ending.ending_of(known, producer, request.committed, asked.version)
        except ApiError as refusal:
            return _answer(asked.waiter, answers.end_txn(refusal.code, asked.version))
        client_version = ending.client_version(asked.version)
        if what is ending.Ending.DONE:
            return _answer(asked.waiter, _ended(known, client_version))
        if fresh_id is None and metadata.needs_producer_id(known, client_version):
            return Decision(effects=(AllocateProducerId(asked),))
        new = metadata.prepared(
            known,
            commit=request.committed,
            client_version=client_version,
            fresh_id=fresh_id,
            now_ms=now_ms,
        )
        reply = Reply(asked.waiter, _ended(metadata.completed(new, now_ms), client_version))
        last = known.client.epoch if client_version >= metadata.EPOCH_PER_TRANSACTION else None
        return self._prepare(request.transactional_id, known, new, last, now_ms, (reply,))

    def _fence(
        self, name: str, known: TransactionMetadata, fresh_id: int | None, now_ms: int, then: tuple[Any, ...]
    ) -> Decision:
        """Aborts an ongoing transaction on the coordinator's own account."""
        server_version = self.settings.transaction_version
        new = metadata.fenced(known, server_version, fresh_id, now_ms)
        bumps = metadata.fence_version(known, server_version) >= metadata.EPOCH_PER_TRANSACTION
        last = known.client.epoch if bumps else NO_PRODUCER_EPOCH
        return self._prepare(name, known, new, last, now_ms, then)

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
        then: tuple[Any, ...],
    ) -> Decision:
        """The outcome becomes durable; what follows it is answered and carried out after that."""
        remember = () if last_epoch is None else (RememberEpoch(name, last_epoch),)
        stop = (timers.disarm_deadline(name),) if known.has_deadline else ()
        decided = Decision((self._record(name, new),), (*remember, *stop, *then))
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
        """Every marker of a SendMarkers is durable. One that was overtaken (the shard was loaded again) means nothing."""
        known = self._transactions.get(transactional_id)
        marked = Producer(producer_id, producer_epoch)
        if (
            known is None
            or known.state not in PREPARED
            or marked != (known.producer_id, known.producer_epoch)
        ):
            return NOTHING
        return Decision((self._record(transactional_id, metadata.completed(known, now_ms)),))

    # ---- producer ids and timers ----------------------------------------------------------------------------

    def decide_producer_id(
        self,
        then: InitContinuation | EndContinuation | TimeoutContinuation,
        producer_id: int | None,
        *,
        now_ms: int,
    ) -> Decision:
        """Goes on with what asked for a producer id, from the state of now. None: there is none to be had at the moment."""
        if isinstance(then, TimeoutContinuation):
            return (
                NOTHING if producer_id is None else self._time_out(then.transactional_id, producer_id, now_ms)
            )
        if isinstance(then, EndContinuation):
            if producer_id is None:
                return _answer(
                    then.waiter, answers.end_txn(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, then.version)
                )
            return self._end(then, producer_id, now_ms)
        if producer_id is None:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return _answer(then.waiter, answers.init_producer_id(code, then.version))
        return self._init(then, producer_id, now_ms)

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
            # Whatever becomes of the allocation: the timer comes again while the transaction is open.
            again = timers.retry_deadline(name, self.settings, now_ms)
            return Decision(effects=(again, AllocateProducerId(TimeoutContinuation(name))))
        return self._fence(name, known, fresh_id, now_ms, ())

    def _expire(self, now_ms: int) -> Decision:
        names, more = timers.expired(self._transactions, self.settings, now_ms)
        if not names and self._surplus() > 0:
            return self._expire_early(now_ms)
        forget = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
        again: tuple[Arm, ...] = ()
        if more or self._surplus() > 0:
            again = (Arm(timers.EXPIRY, now_ms),)
        elif len(names) < len(self._transactions):
            again = (timers.arm_expiry(self.settings, now_ms),)
        return Decision(tuple(tombstone_of(name) for name in names), (*forget, *again))

    def _expire_early(self, now_ms: int) -> Decision:
        """A slice of the ids that are too many, after loading or with a lower limit."""
        names, enough = self._memory.oldest_idle(self._surplus())
        rest = enough or not names
        again = timers.arm_expiry(self.settings, now_ms) if rest else Arm(timers.EXPIRY, now_ms)
        return self._forget_early(names) + Decision(effects=(again,))

    # ---- reading --------------------------------------------------------------------------------------------

    def decide_describe_transactions(
        self, request: DescribeTransactionsRequest, waiter: Waiter, *, now_ms: int
    ) -> Decision:
        """About the ids of a request that belong to this shard."""
        states = [listing.described(name, self._transactions.get(name)) for name in request.transactional_ids]
        return _answer(waiter, DescribeTransactionsResponse(transaction_states=states))

    def ids(self) -> list[str]:
        """All transactional ids of the shard."""
        return list(self._transactions)

    def decide_list_transactions(
        self,
        request: ListTransactionsRequest,
        waiter: Waiter,
        *,
        now_ms: int,
        transactional_ids: Iterable[str] | None = None,
    ) -> Decision:
        """Those of the ids that this shard still has; all of them without ``transactional_ids``. ``listing.merged`` makes
        one answer of all parts."""
        chosen = self._transactions
        if transactional_ids is not None:
            chosen = {name: chosen[name] for name in transactional_ids if name in chosen}
        return _answer(waiter, listing.listed(request, chosen, now_ms))

    # ---- small helpers --------------------------------------------------------------------------------------

    def _known(self, transactional_id: str) -> TransactionMetadata:
        joining.check_id(transactional_id)
        return joining.known(self._transactions.get(transactional_id))

    def _last_epoch(self, transactional_id: str) -> int:
        return self._soft.last_epochs.get(transactional_id, NO_PRODUCER_EPOCH)

    def _record(self, transactional_id: str, new: TransactionMetadata) -> CoordinatorRecord:
        return record_of(transactional_id, new, self.settings.transaction_version)


def _answer(waiter: Waiter, response: Any) -> Decision:
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
