"""Delivery reports of a producer: callbacks, and the failures that the next flush raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.client.connection import Connection
from millstream.client.errors import (
    DROPPED,
    LOCAL_UNKNOWN_PARTITION,
    ClientError,
    DeliveryFailed,
    NotInTime,
    UnknownPartition,
    translate,
)
from millstream.client.interceptors import ProducerChain
from millstream.client.library import KafkaError, Message
from millstream.client.producing.late_records import find_cause
from millstream.client.producing.transaction import FENCED, explain_producer_error
from millstream.core.types import TopicPartition


class Delivery(NamedTuple):
    """The result for one record: where it was written, or why it was not.

    The offset is -1 if it is unknown: the leader went away before it answered, and the record is
    known to be written because the batch behind it is.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    error: ClientError | None


class DeliveryReports:
    """Receives the library's reports. ``failed`` counts the failures since the last flush.

    ``acknowledges``: whether successful deliveries are reported too.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str | None,
        *,
        acknowledges: bool,
        on_delivery: Callable[[Delivery], None] | None,
        chain: ProducerChain | None,
    ) -> None:
        self.transactional_id = transactional_id
        self.acknowledges = acknowledges
        self.owner: object = None
        self.failed = 0
        self._first_failure: ClientError | None = None
        self._connection = connection
        self._on_delivery = on_delivery
        self._chain = chain

    def report(
        self,
        error: KafkaError | None,
        message: Message,
        callback: Callable[[Delivery], None] | None = None,
    ) -> None:
        """Handle the report of one record; ``callback`` is the record's own."""
        failure = None
        if error is not None:
            failure = self._explain(error, message)
            if error.code() not in DROPPED:  # the caller abandoned these: not a failure
                self.count_failure(failure, has_callback=callback is not None)
        if self.acknowledges:
            delivery = _delivery(message, failure)
            if self._chain is not None:
                self._chain.on_acknowledgement(delivery)
            if self._on_delivery is not None:
                self._on_delivery(delivery)
            if callback is not None:
                callback(delivery)

    def reporter(
        self, on_delivery: Callable[[Delivery], None]
    ) -> Callable[[KafkaError | None, Message], None]:
        """Return the callback for the library of a record that has a callback."""
        if not self.acknowledges:
            raise ClientError(
                "this producer reports failures only",
                hint="create it with acknowledge=True to give records an on_delivery",
            )

        def report(error: KafkaError | None, message: Message) -> None:
            self.report(error, message, on_delivery)

        return report

    def count_failure(self, failure: ClientError, *, has_callback: bool) -> None:
        """Keep a failure for the next flush. The record's own callback gets it too."""
        self.failed += 1
        self._first_failure = self._first_failure or failure

    def raise_failures(self) -> None:
        if self._first_failure is None:
            return
        first = self._first_failure
        failed = self.failed
        self.discard_failures()
        raise DeliveryFailed.of(self._with_cause(first), failed)

    def discard_failures(self) -> None:
        self._first_failure, self.failed = None, 0

    def _explain(self, error: KafkaError, message: Message) -> ClientError:
        topic = message.topic() or ""
        if error.code() in FENCED:
            return explain_producer_error(error, f"produce to {topic!r}", self.transactional_id)
        return explain_failure(error, topic, message.partition())

    def _with_cause(self, failure: ClientError) -> ClientError:
        """Ask the cluster why a partition did not accept a record in time."""
        if not isinstance(failure, NotInTime) or failure.partition is None:
            return failure
        cause = find_cause(self._connection, failure.partition)
        if cause is None:
            return failure
        return ClientError(f"{failure.message}: {cause.problem}", hint=cause.hint)


def explain_failure(error: KafkaError, topic: str, partition: int | None) -> ClientError:
    """Return the ClientError for a record that was not accepted."""
    if error.code() == LOCAL_UNKNOWN_PARTITION:
        return no_partition(topic, partition)
    failure = translate(error, doing=f"produce to {topic!r}", subject=topic)
    if isinstance(failure, NotInTime) and partition is not None and partition >= 0:
        failure.partition = TopicPartition(topic, partition)
    return failure


def no_partition(topic: str, partition: int | None) -> UnknownPartition:
    hint = f"see `millstream topics describe {topic}`"
    return UnknownPartition(f"topic {topic!r} has no partition {partition}", hint=hint)


def _delivery(message: Message, error: ClientError | None) -> Delivery:
    partition, offset = message.partition(), message.offset()
    return Delivery(
        message.topic() or "",
        -1 if partition is None else partition,
        -1 if offset is None else offset,
        message.key(),
        message.value(),
        error,
    )
