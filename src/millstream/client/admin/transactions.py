"""Transactions from outside: which there are, what each holds, who writes to a partition, and ending one that hangs (KIP-664).

A transaction hangs when a partition has it open and no coordinator knows of it: readers of committed records stop there
for ever, and only a marker written by hand lets them go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.client.admin.states import OPEN, TransactionState, named
from millstream.client.errors import ClientError, nearest, refusal
from millstream.client.protocol import TRANSACTION, Address
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

# Producers are asked for so many partitions at a time.
PARTITIONS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class TransactionListing:
    id: str
    producer_id: int
    state: str
    coordinator: Address


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id; ``started_ms`` is None unless a transaction is open, and then it has ``partitions``."""

    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    coordinator: Address
    partitions: tuple[TopicPartition, ...]

    @property
    def open(self) -> bool:
        return self.state in OPEN


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers; ``start_offset`` is where its open transaction begins, None without one."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int | None
    last_sequence: int
    last_timestamp_ms: int


Transactions: TypeAlias = list[TransactionListing]
Rows: TypeAlias = dict[str, list[int]]


class TransactionsAdmin:
    """``admin.transactions``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> Transactions:
        """All transactional ids, sorted, or those that pass every filter given. The pattern is a regular expression."""
        request = ListTransactionsRequest(
            state_filters=sorted(named(TransactionState, [*states])),
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        protocol = self._admin.protocol
        found = protocol.patiently(
            lambda: [one for broker in protocol.brokers() for one in self._listed(broker, request)],
            doing="list the transactions",
        )
        return sorted(found, key=lambda one: one.id)

    def _listed(self, at: Address, request: ListTransactionsRequest) -> Transactions:
        answer = self._admin.protocol.ask(request, node=at.node)
        if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise ClientError(
                f"{request.transactional_id_pattern!r} is not a regular expression",
                hint="for example 'billing-.*'; it has to match the whole name",
                code=ErrorCode.INVALID_REGULAR_EXPRESSION,
            )
        if answer.error_code:
            raise refusal(answer.error_code, doing="list the transactions")
        return [
            TransactionListing(one.transactional_id, one.producer_id, one.transaction_state, at)
            for one in answer.transaction_states
        ]

    def get(self, name: str) -> Transaction:
        """One transactional id; ClientError, with the nearest names, if no coordinator knows it."""
        return self._admin.protocol.patiently(
            lambda: self._described(name), doing=f"describe transactional id {name!r}"
        )

    def _described(self, name: str) -> Transaction:
        at = self._admin.protocol.coordinator(name, TRANSACTION)
        request = DescribeTransactionsRequest(transactional_ids=[name])
        found = self._admin.protocol.ask(request, node=at.node).transaction_states[0]
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise self._unknown(name)
        if found.error_code:
            raise refusal(found.error_code, doing=f"describe transactional id {name!r}", subject=name)
        return _transaction(found, at)

    def _unknown(self, name: str) -> ClientError:
        close = nearest(name, (one.id for one in self.list()))
        return ClientError(
            f"there is no transactional id {name!r}",
            hint=f"did you mean {' or '.join(map(repr, close))}?"
            if close
            else "see `millstream transactions list`",
            code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        )

    def abort(self, name: str) -> Transaction:
        """End the open transaction of a transactional id as its next producer would: abort it, and fence who has it now."""
        found = self.get(name)
        if not found.open:
            raise ClientError(
                f"transactional id {name!r} has no open transaction (it is {found.state})",
                hint="for one that no coordinator knows give its --topic, --partition and --producer-id",
            )
        # Twice is as good as once: the second finds it aborted and fences anew.
        self._admin.protocol.patiently(
            lambda: self._fence(name, found.timeout_ms), doing=f"abort the transaction of {name!r}"
        )
        return found

    def _fence(self, name: str, timeout_ms: int) -> None:
        at = self._admin.protocol.coordinator(name, TRANSACTION)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        answer = self._admin.protocol.ask(request, node=at.node)
        if answer.error_code:
            raise refusal(answer.error_code, doing=f"abort the transaction of {name!r}", subject=name)

    def producers(self, partitions: Iterable[TopicPartition]) -> Sequence[ActiveProducer]:
        """The producers that these partitions remember, asked from the leader of each."""
        wanted = sorted(set(partitions))
        return [
            one
            for first in range(0, len(wanted), PARTITIONS_AT_ONCE)
            for one in self._admin.protocol.patiently(
                lambda some=wanted[first : first + PARTITIONS_AT_ONCE]: self._producers(some),  # type: ignore[misc]
                doing="ask for producers",
            )
        ]

    def _producers(self, partitions: Sequence[TopicPartition]) -> Sequence[ActiveProducer]:
        leaders = self._admin.protocol.leaders(one.topic for one in partitions)
        by_node: dict[int, Rows] = {}
        for one in partitions:
            if (node := leaders.get(one)) is not None:
                by_node.setdefault(node, {}).setdefault(one.topic, []).append(one.partition)
        found = [one for node, topics in by_node.items() for one in self._remembered(node, topics)]
        return sorted(found, key=lambda one: (one.partition, one.producer_id))

    def _remembered(self, node: int, topics: Rows) -> Sequence[ActiveProducer]:
        asked = [TopicRequest(name=name, partition_indexes=rows) for name, rows in topics.items()]
        found = []
        for topic in self._admin.protocol.ask(DescribeProducersRequest(topics=asked), node=node).topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    doing = f"ask for the producers of {partition}"
                    raise refusal(
                        row.error_code, doing=doing, subject=partition.topic, reason=row.error_message
                    )
                found += [_producer(partition, one) for one in row.active_producers]
        return found

    def owner(self, producer: ActiveProducer) -> Transaction | None:
        """The open transaction of a coordinator that this producer's belongs to; None: it hangs."""
        for listed in self.list(states=OPEN, producer_ids=[producer.producer_id]):
            found = self.get(listed.id)
            if found.open and producer.partition in found.partitions:
                return found
        return None

    def hanging(
        self, partitions: Iterable[TopicPartition], *, idle_ms: int, now_ms: int
    ) -> Sequence[ActiveProducer]:
        """Transactions open in these partitions, without a record for so long, of which no coordinator knows."""
        return [
            one
            for one in self.producers(partitions)
            if one.start_offset is not None
            and now_ms - one.last_timestamp_ms >= idle_ms
            and self.owner(one) is None
        ]

    def find(self, partition: TopicPartition, producer_id: int | None = None) -> ActiveProducer:
        """The open transaction in a partition: that of the producer, or the only one."""
        known = self.producers([partition])
        if producer_id is not None:
            known = [one for one in known if one.producer_id == producer_id]
        open_ones = [one for one in known if one.start_offset is not None]
        if len(open_ones) == 1:
            return open_ones[0]
        by = "" if producer_id is None else f" by producer {producer_id}"
        if not open_ones:
            raise ClientError(
                f"no transaction is open in {partition}{by}",
                hint=f"see `millstream transactions hanging {partition.topic}`",
            )
        ids = ", ".join(str(one.producer_id) for one in open_ones)
        raise ClientError(
            f"{len(open_ones)} transactions are open in {partition}",
            hint=f"say which with --producer-id: {ids}",
        )

    def write_abort_marker(self, producer: ActiveProducer) -> None:
        """End a transaction in one partition, past its coordinator."""
        tried = False

        def write() -> None:
            nonlocal tried
            # A try without an answer may have ended it, and the producer may have begun the next: that one is not meant.
            if tried and not self._is_open(producer):
                return
            tried = True
            self._write_abort_marker(producer)

        doing = f"abort the transaction of producer {producer.producer_id} in {producer.partition}"
        self._admin.protocol.patiently(write, doing=doing)

    def _is_open(self, producer: ActiveProducer) -> bool:
        return any(
            (one.producer_id, one.start_offset) == (producer.producer_id, producer.start_offset)
            for one in self._producers([producer.partition])
        )

    def _write_abort_marker(self, producer: ActiveProducer) -> None:
        partition = producer.partition
        doing = f"abort the transaction of producer {producer.producer_id} in {partition}"
        leader = self._admin.protocol.leaders([partition.topic]).get(partition)
        if leader is None:
            raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, doing=doing, subject=partition.topic)
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            # A producer whose partition never saw a marker has -1; 0 is older than that of any coordinator.
            coordinator_epoch=max(0, producer.coordinator_epoch),
            topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
        )
        answer = self._admin.protocol.ask(WriteTxnMarkersRequest(markers=[marker]), node=leader)
        for row in (one for marked in answer.markers for topic in marked.topics for one in topic.partitions):
            if row.error_code:
                raise refusal(row.error_code, doing=doing, subject=partition.topic)


def _transaction(found: Any, at: Address) -> Transaction:
    return Transaction(
        found.transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
        at,
        tuple(sorted(TopicPartition(row.topic, index) for row in found.topics for index in row.partitions)),
    )


def _producer(partition: TopicPartition, found: Any) -> ActiveProducer:
    return ActiveProducer(
        partition,
        found.producer_id,
        found.producer_epoch,
        found.coordinator_epoch,
        found.current_txn_start_offset if found.current_txn_start_offset >= 0 else None,
        found.last_sequence,
        found.last_timestamp,
    )
