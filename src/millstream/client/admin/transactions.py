"""Transactions of a cluster: list, describe and abort them, and find hanging ones (KIP-664).

A transaction hangs if a partition has it open and no coordinator knows it. Readers of committed
records stop there, until an abort marker is written with ``write_abort_marker``.
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

# Partitions per request for producers.
PARTITIONS_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class TransactionListing:
    id: str
    producer_id: int
    state: str
    coordinator: Address


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one transactional id.

    ``started_ms`` and ``partitions`` are set only while a transaction is open.
    """

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
    """A producer in a partition; ``start_offset`` is where its open transaction begins, or None."""

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
        """Return all transactional ids, sorted, or those that pass every filter.

        The pattern is a regular expression.
        """
        request = ListTransactionsRequest(
            state_filters=sorted(named(TransactionState, [*states])),
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        protocol = self._admin.protocol
        listings = protocol.patiently(
            lambda: [
                listing
                for broker in protocol.brokers()
                for listing in self._listed(broker, request)
            ],
            doing="list the transactions",
        )
        return sorted(listings, key=lambda listing: listing.id)

    def _listed(self, broker: Address, request: ListTransactionsRequest) -> Transactions:
        response = self._admin.protocol.ask(request, node=broker.node)
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise ClientError(
                f"{request.transactional_id_pattern!r} is not a regular expression",
                hint="for example 'billing-.*'; it has to match the whole name",
                code=ErrorCode.INVALID_REGULAR_EXPRESSION,
            )
        if response.error_code:
            raise refusal(response.error_code, doing="list the transactions")
        return [
            TransactionListing(
                state.transactional_id, state.producer_id, state.transaction_state, broker
            )
            for state in response.transaction_states
        ]

    def get(self, name: str) -> Transaction:
        """Return the state of one transactional id.

        Raise ClientError, with the nearest names, if no coordinator knows it.
        """
        return self._admin.protocol.patiently(
            lambda: self._described(name), doing=f"describe transactional id {name!r}"
        )

    def _described(self, name: str) -> Transaction:
        coordinator = self._admin.protocol.coordinator(name, TRANSACTION)
        request = DescribeTransactionsRequest(transactional_ids=[name])
        state = self._admin.protocol.ask(request, node=coordinator.node).transaction_states[0]
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise self._unknown(name)
        if state.error_code:
            raise refusal(
                state.error_code, doing=f"describe transactional id {name!r}", subject=name
            )
        return _transaction(state, coordinator)

    def _unknown(self, name: str) -> ClientError:
        close = nearest(name, (listing.id for listing in self.list()))
        return ClientError(
            f"transactional id {name!r} does not exist",
            hint=f"did you mean {' or '.join(map(repr, close))}?"
            if close
            else "see `millstream transactions list`",
            code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        )

    def abort(self, name: str) -> Transaction:
        """Abort the open transaction of a transactional id, as its next producer would.

        The current producer is fenced.
        """
        transaction = self.get(name)
        if not transaction.open:
            raise ClientError(
                f"transactional id {name!r} has no open transaction (it is {transaction.state})",
                hint="to abort a transaction that no coordinator knows, give its --topic, "
                "--partition and --producer-id",
            )
        # It can be repeated: a second attempt finds the transaction aborted and fences again.
        self._admin.protocol.patiently(
            lambda: self._fence(name, transaction.timeout_ms),
            doing=f"abort the transaction of {name!r}",
        )
        return transaction

    def _fence(self, name: str, timeout_ms: int) -> None:
        coordinator = self._admin.protocol.coordinator(name, TRANSACTION)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        response = self._admin.protocol.ask(request, node=coordinator.node)
        if response.error_code:
            raise refusal(
                response.error_code, doing=f"abort the transaction of {name!r}", subject=name
            )

    def producers(self, partitions: Iterable[TopicPartition]) -> Sequence[ActiveProducer]:
        """Return the producers that the leaders of these partitions know."""
        ordered = sorted(set(partitions))
        return [
            producer
            for first in range(0, len(ordered), PARTITIONS_PER_REQUEST)
            for producer in self._admin.protocol.patiently(
                lambda some=ordered[first : first + PARTITIONS_PER_REQUEST]: self._producers(some),  # type: ignore[misc]
                doing="list producers",
            )
        ]

    def _producers(self, partitions: Sequence[TopicPartition]) -> Sequence[ActiveProducer]:
        leaders = self._admin.protocol.leaders(partition.topic for partition in partitions)
        by_node: dict[int, Rows] = {}
        for partition in partitions:
            if (node := leaders.get(partition)) is not None:
                by_node.setdefault(node, {}).setdefault(partition.topic, []).append(
                    partition.partition
                )
        producers = [
            producer
            for node, topics in by_node.items()
            for producer in self._producers_at(node, topics)
        ]
        return sorted(producers, key=lambda producer: (producer.partition, producer.producer_id))

    def _producers_at(self, node: int, topics: Rows) -> Sequence[ActiveProducer]:
        requested = [
            TopicRequest(name=name, partition_indexes=rows) for name, rows in topics.items()
        ]
        producers = []
        for topic in self._admin.protocol.ask(
            DescribeProducersRequest(topics=requested), node=node
        ).topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    doing = f"list the producers of {partition}"
                    raise refusal(
                        row.error_code,
                        doing=doing,
                        subject=partition.topic,
                        reason=row.error_message,
                    )
                producers += [_producer(partition, active) for active in row.active_producers]
        return producers

    def owner(self, producer: ActiveProducer) -> Transaction | None:
        """Return the coordinator's open transaction of this producer, or None if it hangs."""
        for listed in self.list(states=OPEN, producer_ids=[producer.producer_id]):
            transaction = self.get(listed.id)
            if transaction.open and producer.partition in transaction.partitions:
                return transaction
        return None

    def hanging(
        self, partitions: Iterable[TopicPartition], *, idle_ms: int, now_ms: int
    ) -> Sequence[ActiveProducer]:
        """Return transactions in these partitions that are open and that no coordinator knows.

        Only those without a record for at least ``idle_ms`` are checked.
        """
        return [
            producer
            for producer in self.producers(partitions)
            if producer.start_offset is not None
            and now_ms - producer.last_timestamp_ms >= idle_ms
            and self.owner(producer) is None
        ]

    def find(self, partition: TopicPartition, producer_id: int | None = None) -> ActiveProducer:
        """Return the open transaction of the producer in a partition, or the only open one."""
        producers = self.producers([partition])
        if producer_id is not None:
            producers = [producer for producer in producers if producer.producer_id == producer_id]
        candidates = [producer for producer in producers if producer.start_offset is not None]
        if len(candidates) == 1:
            return candidates[0]
        by = "" if producer_id is None else f" by producer {producer_id}"
        if not candidates:
            raise ClientError(
                f"no transaction is open in {partition}{by}",
                hint=f"see `millstream transactions hanging {partition.topic}`",
            )
        ids = ", ".join(str(producer.producer_id) for producer in candidates)
        raise ClientError(
            f"{len(candidates)} transactions are open in {partition}",
            hint=f"say which with --producer-id: {ids}",
        )

    def write_abort_marker(self, producer: ActiveProducer) -> None:
        """End a transaction in one partition, without its coordinator."""
        tried = False

        def write() -> None:
            nonlocal tried
            # An attempt without a response may have ended it. The producer's next transaction, if
            # it has begun one, must not be aborted.
            if tried and not self._is_open(producer):
                return
            tried = True
            self._write_abort_marker(producer)

        doing = f"abort the transaction of producer {producer.producer_id} in {producer.partition}"
        self._admin.protocol.patiently(write, doing=doing)

    def _is_open(self, producer: ActiveProducer) -> bool:
        return any(
            (active.producer_id, active.start_offset)
            == (producer.producer_id, producer.start_offset)
            for active in self._producers([producer.partition])
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
            # The epoch is -1 before the first marker in the partition; 0 is older than any
            # coordinator's.
            coordinator_epoch=max(0, producer.coordinator_epoch),
            topics=[
                WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
        )
        response = self._admin.protocol.ask(WriteTxnMarkersRequest(markers=[marker]), node=leader)
        results = [
            result
            for marked in response.markers
            for topic in marked.topics
            for result in topic.partitions
        ]
        for result in results:
            if result.error_code:
                raise refusal(result.error_code, doing=doing, subject=partition.topic)


def _transaction(described: Any, coordinator: Address) -> Transaction:
    return Transaction(
        described.transactional_id,
        described.transaction_state,
        described.producer_id,
        described.producer_epoch,
        described.transaction_timeout_ms,
        described.transaction_start_time_ms if described.transaction_start_time_ms >= 0 else None,
        coordinator,
        tuple(
            sorted(
                TopicPartition(row.topic, index)
                for row in described.topics
                for index in row.partitions
            )
        ),
    )


def _producer(partition: TopicPartition, active: Any) -> ActiveProducer:
    return ActiveProducer(
        partition,
        active.producer_id,
        active.producer_epoch,
        active.coordinator_epoch,
        active.current_txn_start_offset if active.current_txn_start_offset >= 0 else None,
        active.last_sequence,
        active.last_timestamp,
    )
