"""Interceptors: application code around sending, acknowledging, consuming and committing.

They are called in the order of the list, each with the result of the one before. As in Kafka, an
interceptor that raises is logged and skipped: it must not stop the records. So is an interceptor
that returns None because it lacks a return statement.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.producer import Delivery
    from millstream.client.record import Record

T = TypeVar("T")
logger = logging.getLogger("millstream.client")


class Outgoing(NamedTuple):
    """A record to send, before it is serialised; change it with ``_replace``."""

    topic: str
    value: Any
    key: Any
    headers: tuple[tuple[str, Any], ...]
    partition: int | None
    timestamp_ms: int | None


class ProducerInterceptor:
    """The base class. Override the methods that you need."""

    def on_send(self, record: Outgoing) -> Outgoing:
        """Called before the record is serialised and given a partition."""
        return record

    def on_acknowledgement(self, delivery: Delivery) -> None:
        """Called when the record is acknowledged or has failed.

        The caller is ``send``, ``poll`` or ``flush``.
        """


class ConsumerInterceptor:
    """The base class. Override the methods that you need."""

    def on_consume(self, records: list[Record]) -> list[Record]:
        """Called before records are handed out. Records that it leaves out count as read."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Called when offsets of the group have been committed."""


def _returned(result: T | None) -> T:
    if result is None:
        raise TypeError("it returned None; an interceptor returns its argument, changed or not")
    return result


class ProducerChain:
    """All interceptors of a producer."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)

    def on_send(self, record: Outgoing) -> Outgoing:
        for interceptor in self._interceptors:
            try:
                record = _returned(interceptor.on_send(record))
            except Exception:
                logger.exception(
                    "%s.on_send failed; the record is sent unchanged", type(interceptor).__name__
                )
        return record

    def on_acknowledgement(self, delivery: Delivery) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_acknowledgement(delivery)
            except Exception:
                logger.exception("%s.on_acknowledgement failed", type(interceptor).__name__)


class ConsumerChain:
    """All interceptors of a consumer."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)

    def on_consume(self, records: list[Record]) -> list[Record]:
        for interceptor in self._interceptors:
            try:
                records = _returned(interceptor.on_consume(records))
            except Exception:
                logger.exception(
                    "%s.on_consume failed; the records are handed out unchanged",
                    type(interceptor).__name__,
                )
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:
                logger.exception("%s.on_commit failed", type(interceptor).__name__)
