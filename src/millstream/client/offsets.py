"""Offsets of partitions: the first, the next to be written, by time; and DeleteRecords, which moves the first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from millstream.client.errors import ClientError
from millstream.client.library import IsolationLevel, KafkaTopicPartition, OffsetSpec
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.admin import Admin

Isolation = Literal["read_committed", "read_uncommitted"]
Spec = Literal["earliest", "latest", "max_timestamp"] | int
"""Which offset is asked for; a number is a time in milliseconds: the first record at or after it."""


_LEADER_CHANGES = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)
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
        deadline_s = time.monotonic() + self._admin.connection.timeout_s
        while True:
            try:
                return self._ask(wanted, isolation) if wanted else {}
            except ClientError as error:
                if error.code not in _LEADER_CHANGES or time.monotonic() > deadline_s:
                    raise
            time.sleep(0.05)

    def _ask(
        self, wanted: Mapping[TopicPartition, Spec], isolation: Isolation
    ) -> dict[TopicPartition, OffsetAt]:
        futures = self._admin.client.list_offsets(
            {KafkaTopicPartition(*partition): _spec(spec) for partition, spec in wanted.items()},
            isolation_level=IsolationLevel[isolation.upper()],
            request_timeout=self._admin.connection.timeout_s,
        )
        answers = {}
        for asked, future in futures.items():
            partition = TopicPartition(asked.topic, asked.partition)
            found = self._admin.wait(future, doing=f"list the offsets of {partition}", subject=asked.topic)
            if found.offset == _UNTOLD:
                raise ClientError(f"{partition} has no leader", code=ErrorCode.LEADER_NOT_AVAILABLE)
            answers[partition] = OffsetAt(found.offset, found.timestamp)
        return answers

    def earliest(self, topic: str) -> dict[TopicPartition, int]:
        """The first offset that every partition still has."""
        return self._of_topic(topic, "earliest")

    def latest(self, topic: str, *, isolation: Isolation = "read_uncommitted") -> dict[TopicPartition, int]:
        """The offset of the next record of every partition: the high watermark, or the last stable offset."""
        return self._of_topic(topic, "latest", isolation)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what is before an offset (-1: everything); the new first offset of each partition."""
        asked = [KafkaTopicPartition(*partition, offset) for partition, offset in before.items()]
        timeout_s = self._admin.connection.timeout_s
        futures = self._admin.client.delete_records(
            asked, request_timeout=timeout_s, operation_timeout=timeout_s
        )
        low = {}
        for one, future in futures.items():
            partition = TopicPartition(one.topic, one.partition)
            doing = f"delete the records of {partition} before {before[partition]}"
            low[partition] = self._admin.wait(future, doing=doing, subject=one.topic).low_watermark
        return low

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
