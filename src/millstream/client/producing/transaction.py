"""``producer.transaction()``: records in any number of partitions, and offsets of a group, all of them or none.

with Producer("localhost:9092", transactional_id="billing") as producer:
    with producer.transaction() as transaction:
        transaction.send("invoices", invoice, key=order)
        transaction.send("seats", seat, key=flight)
        transaction.commit_offsets(consumer)  # what the consumer has handed out counts as read, if the rest counts

When a transaction is aborted, the consumers whose offsets this producer commits go back: what they had handed out and nobody
committed comes again with their next poll. Until then the same transaction may be tried again with the records at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream.client.errors import LOCAL_STATE, ClientError, ProducerFenced, kafka_error, translate
from millstream.client.library import KafkaConsumer, KafkaException, KafkaTopicPartition, interruptible
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


class ProducerTransaction:
    """One transaction, as a ``with`` block: ``send`` as with the producer, ``commit_offsets`` for a consumer in a group.

    It is committed at the end of the block; an exception in it, or a record that was refused, aborts it. A ``consumer`` that is given
    at the beginning goes back also when the block fails before its ``commit_offsets``.
    """

    def __init__(self, producer: Producer, consumer: Consumer | None = None) -> None:
        self._producer = producer
        self._consumed: list[tuple[Membership, dict[TopicPartition, int]]] = []
        self.send = producer.send
        if consumer is not None:
            self._remember(consumer)

    def commit_offsets(self, consumer: Consumer) -> None:
        """What the consumer has handed out becomes committed with this transaction, or not at all."""
        unknown = consumer not in self._producer.consumers
        membership = self._remember(consumer)
        if unknown:
            self._check_no_gap(consumer, membership)
        offsets = dict(membership.noted)
        if not offsets:
            return
        asked = [KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()]
        member = membership.client.consumer_group_metadata()
        self._producer.transact("commit offsets in", "send_offsets_to_transaction", asked, member)
        self._consumed.append((membership, offsets))

    def commit_positions(self, member: KafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Offsets of a group that has no members, for which a consumer speaks that has not joined it."""
        asked = [KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()]
        metadata = member.consumer_group_metadata()
        self._producer.transact("commit offsets in", "send_offsets_to_transaction", asked, metadata)

    def _remember(self, consumer: Consumer) -> Membership:
        if consumer.membership is None:
            raise ClientError("a consumer without a group has no offsets to commit", hint="give it a group")
        self._producer.consumers.add(consumer)
        return consumer.membership

    def _check_no_gap(self, consumer: Consumer, membership: Membership) -> None:
        """A transaction that failed before it was told of the consumer could not send it back. If the consumer went on, its offsets
        would cover records whose results were aborted."""
        aborted_s = self._producer.aborted_s
        if membership.noted and membership.noted_since_s < aborted_s < consumer.polled_s:
            raise ClientError(
                "records were handed out before a transaction that was aborted, and the consumer has gone on behind them",
                hint="begin with producer.transaction(consumer), or call consumer.rewind() where the failure is caught",
            )

    def __enter__(self) -> ProducerTransaction:
        self._producer.transact("begin", "begin_transaction")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._commit()
        else:
            self._abort(error)

    def _commit(self) -> None:
        try:
            self._producer.flush()
            self._producer.transact("commit", "commit_transaction")
        except BaseException as error:
            self._abort(error)
            raise
        for membership, offsets in self._consumed:
            membership.committed_elsewhere(offsets)  # the consumer need not say it again

    def _abort(self, reason: BaseException) -> None:
        """What is queued is sent first, if that goes quickly. A transaction that is aborted while its first record is on its way is
        refused by the coordinator, which may not know of it yet (INVALID_TXN_STATE), and the producer is good for nothing after that.
        What remains the library drops, keeping its sequence numbers in order: dropped by us, they would have a gap."""
        self._producer.aborted_s = time.monotonic()
        for consumer in self._producer.consumers:
            consumer.go_back_later()
        if isinstance(reason, ProducerFenced):
            return  # its successor aborts the transaction
        self._producer.settle(SETTLE_S)
        self._producer.transact("abort", "abort_transaction")
        self._producer.forget_failures()


def call(
    act: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    doing: str,
    timeout_s: float,
    transactional_id: str | None = None,
) -> None:
    """One step of a transaction, repeated while the library says that it may be."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            interruptible(act, *arguments)
            return
        except KafkaException as error:
            failure = kafka_error(error)
            if not failure.retriable() or time.monotonic() > deadline_s:
                raise told(failure, doing, transactional_id) from None
        time.sleep(RETRY_S)


def told(error: Any, doing: str, transactional_id: str | None = None) -> ClientError:
    """The ClientError for what stopped a producer; ProducerFenced when it was another one."""
    failure = kafka_error(error)
    found = translate(failure, doing=doing)
    if failure.code() in FENCED:
        which = "the producer" if transactional_id is None else f"the producer of {transactional_id!r}"
        return ProducerFenced(
            f"{which} is fenced: another producer has started with the same transactional id",
            hint="stop this one; a producer that is to run beside it needs another transactional_id",
            code=found.code,
        )
    if failure.code() == LOCAL_STATE and doing.startswith("begin "):
        return ClientError(
            f"cannot {doing}: one is open already",
            hint="end its block first; transactions side by side need a producer and a transactional_id each",
        )
    return found
