"""Offsets of partitions: the first, the next to be written, by time; and DeleteRecords, which moves the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from millstream.client.errors import ClientError, refusal
from millstream.client.library import (
    IsolationLevel,
    KafkaException,
    KafkaTopicPartition,
    OffsetSpec,
    interruptible,
)
from millstream.client.retries import PASSING
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

Isolation = Literal["read_committed", "read_uncommitted"]
Spec = Literal["earliest", "latest", "max_timestamp"] | int
"""Which offset is asked for; a number is a time in milliseconds: the first record at or after it."""


# What librdkafka answers, without an error, for a partition whose leader went while it asked. Taken for an offset to
# read from, it would mean the committed one.
_UNTOLD = -1001


class OffsetAt(NamedTuple):
    """An answer: ``offset`` is -1 when no record is that late; ``timestamp_ms`` is -1 where the question has none."""

    offset: int
    timestamp_ms: int


class OffsetsAdmin:
    """``admin.offsets``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def list(
        self, wanted: Mapping[TopicPartition, Spec], *, isolation: Isolation = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAt]:
        """One answer per partition asked for. A partition whose leader is just changing is asked again."""
        found: dict[TopicPartition, OffsetAt] = {}
        self._admin.patience.persist(
            lambda limit_s: self.ask_rest(wanted, found, limit_s, isolation), doing="list offsets"
        )
        return found

    def ask_rest(
        self,
        wanted: Mapping[TopicPartition, Spec],
        found: dict[TopicPartition, OffsetAt],
        limit_s: float,
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        """Ask once for what is not found yet, and raise the first refusal when all answers are in."""
        rest = {KafkaTopicPartition(*one): _spec(spec) for one, spec in wanted.items() if one not in found}
        if not rest:
            return
        futures = self._admin.client.list_offsets(
            rest, isolation_level=IsolationLevel[isolation.upper()], request_timeout=limit_s
        )
        failure: ClientError | None = None
        for asked, future in futures.items():
            try:
                found[TopicPartition(asked.topic, asked.partition)] = self._offset(asked, future)
            except ClientError as error:
                failure = failure or error
        if failure is not None:
            if failure.code is None or failure.code in PASSING:
                self._forget_leaders({one.topic for one in wanted if one not in found}, limit_s)
            raise failure

    def _forget_leaders(self, topics: Iterable[str], limit_s: float) -> None:
        """librdkafka goes on asking the leader that it knows, also one that is gone; who leads now it hears when it is made to ask."""
        for topic in sorted(topics):
            with suppress(KafkaException):
                interruptible(self._admin.client.list_topics, topic, timeout=limit_s)

    def _offset(self, asked: KafkaTopicPartition, future: Any) -> OffsetAt:
        partition = TopicPartition(asked.topic, asked.partition)
        told = self._admin.wait(future, doing=f"list the offsets of {partition}", subject=asked.topic)
        if told.offset == _UNTOLD:
            raise refusal(
                ErrorCode.LEADER_NOT_AVAILABLE, doing=f"list the offsets of {partition}", subject=asked.topic
            )
        return OffsetAt(told.offset, told.timestamp)

    def earliest(self, topic: str) -> dict[TopicPartition, int]:
        """The first offset that every partition still has."""
        return self._of_topic(topic, "earliest")

    def latest(self, topic: str, *, isolation: Isolation = "read_uncommitted") -> dict[TopicPartition, int]:
        """The offset of the next record of every partition: the high watermark, or the last stable offset."""
        return self._of_topic(topic, "latest", isolation)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what is before an offset (-1: everything); the new first offset of each partition."""
        low: dict[TopicPartition, int] = {}
        self._admin.patience.persist(lambda limit_s: self._delete_rest(before, low), doing="delete records")
        return low

    def _delete_rest(self, before: Mapping[TopicPartition, int], low: dict[TopicPartition, int]) -> None:
        """Deleting what is gone already is no error, so a try without an answer can be repeated."""
        asked = [KafkaTopicPartition(*one, offset) for one, offset in before.items() if one not in low]
        timeout_s = self._admin.connection.request_timeout_s
        futures = self._admin.client.delete_records(
            asked, request_timeout=timeout_s, operation_timeout=timeout_s
        )
        for one, future in futures.items():
            partition = TopicPartition(one.topic, one.partition)
            doing = f"delete the records of {partition} before {before[partition]}"
            low[partition] = self._admin.wait(future, doing=doing, subject=one.topic).low_watermark

    def _of_topic(
        self, topic: str, spec: Spec, isolation: Isolation = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        partitions: Iterable[TopicPartition] = self._admin.topics.partitions(topic)
        answers = self.list(dict.fromkeys(partitions, spec), isolation=isolation)
        return {partition: answer.offset for partition, answer in answers.items()}


def _spec(spec: Spec) -> Any:
    if isinstance(spec, int):
        return OffsetSpec.for_timestamp(spec)
    return getattr(OffsetSpec, spec)()
