"""Interceptors: code of one's own before a record is sent, after it is acknowledged, before it is
handed out, after a commit.

They are given as a list and called in its order, each with what the one before it returned. As in
Kafka, one that raises is told in the log and passed over: it must not stop the records. So is one
that returns None, having forgotten to return anything.
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
log = logging.getLogger("millstream.client")


class Outgoing(NamedTuple):
    """A record on its way out, before it is serialised; change it with ``_replace``."""

    topic: str
    value: Any
    key: Any
    headers: tuple[tuple[str, Any], ...]
    partition: int | None
    timestamp_ms: int | None


class ProducerInterceptor:
    """Override what is wanted."""

    def on_send(self, record: Outgoing) -> Outgoing:
        """Before the record is serialised and given a partition."""
        return record

    def on_acknowledgement(self, delivery: Delivery) -> None:
        """When its fate is known, also when it was refused. Called from ``send``, ``poll`` and
        ``flush``.
        """


class ConsumerInterceptor:
    """Override what is wanted."""

    def on_consume(self, records: list[Record]) -> list[Record]:
        """Before records are handed out. Those that are left out count as read."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """When offsets of the group have been committed."""


def _returned(result: T | None) -> T:
    if result is None:
        raise TypeError("it returned nothing; an interceptor returns what it was given, changed or not")
    return result


class ProducerChain:
    """All interceptors of a producer."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor]) -> None:
        self._all = tuple(interceptors)

    def on_send(self, record: Outgoing) -> Outgoing:
        for one in self._all:
            try:
                record = _returned(one.on_send(record))
            except Exception:
                log.exception("%s.on_send failed; the record goes on as it was", type(one).__name__)
        return record

    def on_acknowledgement(self, delivery: Delivery) -> None:
        for one in self._all:
            try:
                one.on_acknowledgement(delivery)
            except Exception:
                log.exception("%s.on_acknowledgement failed", type(one).__name__)


class ConsumerChain:
    """All interceptors of a consumer."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._all = tuple(interceptors)

    def on_consume(self, records: list[Record]) -> list[Record]:
        for one in self._all:
            try:
                records = _returned(one.on_consume(records))
            except Exception:
                log.exception("%s.on_consume failed; the records go on as they were", type(one).__name__)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for one in self._all:
            try:
                one.on_commit(offsets)
            except Exception:
                log.exception("%s.on_commit failed", type(one).__name__)
