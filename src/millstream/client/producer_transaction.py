"""``producer.transaction()``: records in any number of partitions, and offsets of a group, all of them or none.

with Producer("localhost:9092", transactional_id="billing") as producer:
    with producer.transaction() as transaction:
        transaction.send("invoices", invoice, key=order)
        transaction.send("seats", seat, key=flight)
        transaction.commit_offsets(consumer)  # what the consumer has handed out counts as read, if the rest counts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.client.errors import ClientError, ProducerFenced, kafka_error, translate
from millstream.client.library import KafkaException, KafkaTopicPartition, interruptible
from millstream.core.errors import ErrorCode

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer
    from millstream.client.producer import Producer

RETRY_S = 0.05
LOCAL_FENCED = -144
_FENCED = (LOCAL_FENCED, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class ProducerTransaction:
    """An open transaction: ``send`` as with the producer, ``commit_offsets`` for a consumer in a group."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._consumed: list[tuple[Consumer, dict[Any, int]]] = []
        self.send = producer.send

    def commit_offsets(self, consumer: Consumer) -> None:
        """What the consumer has handed out becomes committed with this transaction, or not at all."""
        membership = consumer.membership
        if membership is None:
            raise ClientError("a consumer without a group has no offsets to commit", hint="give it a group")
        offsets = dict(membership.noted)
        if not offsets:
            return
        asked = [KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()]
        member = membership.client.consumer_group_metadata()
        self._producer._in_transaction("commit offsets", "send_offsets_to_transaction", asked, member)
        self._consumed.append((consumer, offsets))

    def is_committed(self) -> None:
        """The consumers need not commit by themselves what went with the transaction."""
        for consumer, offsets in self._consumed:
            if consumer.membership is not None:
                consumer.membership.is_committed(offsets)


@contextmanager
def transaction(producer: Producer) -> Iterator[ProducerTransaction]:
    """Begin, and commit at the end of the block; an exception in it, or a record that was refused, aborts."""
    producer._in_transaction("begin", "begin_transaction")
    begun = ProducerTransaction(producer)
    try:
        yield begun
        producer.flush()
        producer._in_transaction("commit", "commit_transaction")
    except ProducerFenced:
        raise  # its successor has aborted the transaction already
    except BaseException:
        producer.abandon()
        producer._in_transaction("abort", "abort_transaction")
        raise
    begun.is_committed()


def call(act: Callable[..., Any], arguments: tuple[Any, ...], *, doing: str, timeout_s: float) -> None:
    """One step of a transaction, repeated while the library says that it may be."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            interruptible(act, *arguments)
            return
        except KafkaException as error:
            failure = kafka_error(error)
            if not failure.retriable() or time.monotonic() > deadline_s:
                raise told(failure, doing) from None
        time.sleep(RETRY_S)


def told(error: Any, doing: str) -> ClientError:
    """The ClientError for what stopped a producer; ProducerFenced when it was another one."""
    failure = kafka_error(error)
    found = translate(failure, doing=doing)
    if failure.code() in _FENCED:
        hint = "only one producer may use a transactional id at a time; stop, or take another id"
        return ProducerFenced(found.message, hint=hint, code=found.code)
    return found
