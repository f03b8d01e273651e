"""``producer.transaction()``: write records and commit offsets of a group atomically.

with Producer("localhost:9092", transactional_id="billing") as producer:
    with producer.transaction() as transaction:
        transaction.send("invoices", invoice, key=order)
        transaction.send("seats", seat, key=flight)
        # commit, in this transaction, the offsets of all records that the consumer handed out
        transaction.commit_offsets(consumer)

When a transaction is aborted, the consumers whose offsets this producer commits rewind. Their next
poll returns the records again that were handed out and not committed. Until then the application
may repeat the transaction with the records it has.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream.client.errors import (
    LOCAL_STATE,
    ClientError,
    ProducerFenced,
    kafka_error,
    translate,
)
from millstream.client.library import (
    KafkaConsumer,
    KafkaException,
    KafkaProducer,
    KafkaTopicPartition,
    interruptible,
)
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer
    from millstream.client.consuming.membership import Membership
    from millstream.client.producer import Producer

RETRY_S = 0.05
SETTLE_S = 2.0
LOCAL_FENCED = -144
FENCED = (LOCAL_FENCED, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class TransactionCoordination:
    """The transactional calls of a producer, and the consumers whose offsets it commits."""

    def __init__(
        self, client: KafkaProducer, transactional_id: str | None, timeout_s: float
    ) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._initialized = False
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self.aborted_s = -1.0

    def prepare(self, doing: str = "prepare") -> None:
        """Fence other producers with this transactional id, and wait for the end of their work."""
        if not self._initialized:
            self._call(doing, self._client.init_transactions, self._timeout_s)
            self._initialized = True

    def begin(self) -> None:
        self.prepare("begin")
        self._call("begin", self._client.begin_transaction)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], member: KafkaConsumer) -> None:
        """Commit offsets of the member's group with the open transaction."""
        doing = "commit offsets in"
        positions = [
            KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()
        ]
        metadata = member.consumer_group_metadata()
        self.prepare(doing)
        self._call(doing, self._client.send_offsets_to_transaction, positions, metadata)

    def commit(self) -> None:
        self.prepare("commit")
        self._call("commit", self._client.commit_transaction)

    def abort(self) -> None:
        self.prepare("abort")
        self._call("abort", self._client.abort_transaction)

    def _call(self, doing: str, step: Callable[..., Any], *arguments: Any) -> None:
        """Run one step of a transaction, and repeat it while the library says that it may be."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                interruptible(step, *arguments)
                return
            except KafkaException as error:
                failure = kafka_error(error)
                if not failure.retriable() or time.monotonic() > deadline_s:
                    doing = f"{doing} a transaction of {self._transactional_id!r}"
                    raise explain_producer_error(failure, doing, self._transactional_id) from None
            time.sleep(RETRY_S)


class ProducerTransaction:
    """One transaction, as a ``with`` block.

    ``send`` works as with the producer; ``commit_offsets`` adds the offsets of a consumer in a
    group. The end of the block commits the transaction. An exception in the block, or a record that
    was rejected, aborts it.

    A ``consumer`` that is given at the beginning rewinds even if the block fails before it calls
    ``commit_offsets``.
    """

    def __init__(self, producer: Producer, consumer: Consumer | None = None) -> None:
        self._producer = producer
        self._coordination = producer.coordination
        self._committed: list[tuple[Membership, dict[TopicPartition, int]]] = []
        self.send = producer.send
        if consumer is not None:
            self._remember(consumer)

    def commit_offsets(self, consumer: Consumer) -> None:
        """Commit the offsets of everything the consumer has handed out with this transaction."""
        is_new = consumer not in self._coordination.consumers
        membership = self._remember(consumer)
        if is_new:
            self._check_no_gap(consumer, membership)
        offsets = dict(membership.uncommitted)
        if not offsets:
            return
        self._coordination.send_offsets(offsets, membership.client)
        self._committed.append((membership, offsets))

    def commit_positions(
        self, member: KafkaConsumer, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Commit offsets of a group without members; ``member`` only names the group."""
        self._coordination.send_offsets(offsets, member)

    def _remember(self, consumer: Consumer) -> Membership:
        if consumer.membership is None:
            raise ClientError(
                "a consumer without a group has no offsets to commit", hint="give it a group"
            )
        self._coordination.consumers.add(consumer)
        return consumer.membership

    def _check_no_gap(self, consumer: Consumer, membership: Membership) -> None:
        """Raise if the consumer continued after an abort that did not rewind it.

        A transaction that failed before it knew the consumer could not rewind it. If the consumer
        has polled since then, its offsets would cover records whose results were aborted.
        """
        aborted_s = self._coordination.aborted_s
        if (
            membership.uncommitted
            and membership.uncommitted_since_s < aborted_s < consumer.stream.polled_s
        ):
            raise ClientError(
                "the consumer was polled after a transaction with its records had been aborted",
                hint="begin with producer.transaction(consumer), "
                "or call consumer.rewind() where the failure is caught",
            )

    def __enter__(self) -> ProducerTransaction:
        self._coordination.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._commit()
        else:
            self._abort(error)

    def _commit(self) -> None:
        try:
            self._producer.flush()
            self._coordination.commit()
        except BaseException as error:
            self._abort(error)
            raise
        for membership, offsets in self._committed:
            membership.mark_committed_by_transaction(offsets)

    def _abort(self, reason: BaseException) -> None:
        """Abort, after a short wait for queued records.

        If the first record of a transaction is still in flight, the coordinator may not know the
        transaction yet. It rejects the abort (INVALID_TXN_STATE), which makes the producer
        unusable. The library drops the remaining records and keeps their sequence numbers in order;
        purging them here would leave a gap.
        """
        self._coordination.aborted_s = time.monotonic()
        for consumer in self._coordination.consumers:
            consumer.stream.rewind_later()
        if isinstance(reason, ProducerFenced):
            return  # its successor aborts the transaction
        self._producer.settle(SETTLE_S)
        self._coordination.abort()
        self._producer.discard_failures()


def explain_producer_error(
    error: Any, doing: str, transactional_id: str | None = None
) -> ClientError:
    """Return the ClientError that stopped a producer; ProducerFenced if another producer did."""
    failure = kafka_error(error)
    translated = translate(failure, doing=doing)
    if failure.code() in FENCED:
        producer = (
            "the producer" if transactional_id is None else f"the producer of {transactional_id!r}"
        )
        return ProducerFenced(
            f"{producer} is fenced: another producer has started with the same transactional id",
            hint="stop this one; a producer that runs beside it needs another transactional_id",
            code=translated.code,
        )
    if failure.code() == LOCAL_STATE and doing.startswith("begin "):
        return ClientError(
            f"cannot {doing}: one is already open",
            hint="end its block first; use a producer and a transactional_id for each transaction",
        )
    return translated
