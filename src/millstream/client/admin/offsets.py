"""Offsets of partitions: the first, the next, and by time.

DeleteRecords, which advances the first offset, is here too.
"""

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
"""Which offset to list. A number is a time in milliseconds: the first record at or after it."""


# librdkafka returns this offset, without an error, if the leader went away during the request.
# As an offset to read from it would mean the committed one.
_UNKNOWN_OFFSET = -1001


class OffsetAt(NamedTuple):
    """A result: ``offset`` is -1 if no record is that late, ``timestamp_ms`` if not listed."""

    offset: int
    timestamp_ms: int


class OffsetsAdmin:
    """``admin.offsets``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def list(
        self, wanted: Mapping[TopicPartition, Spec], *, isolation: Isolation = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAt]:
        """Return one result per partition.

        A partition whose leader is changing is requested again.
        """
        offsets: dict[TopicPartition, OffsetAt] = {}
        self._admin.retries.run(
            lambda limit_s: self.list_missing(wanted, offsets, limit_s, isolation),
            doing="list offsets",
        )
        return offsets

    def list_missing(
        self,
        wanted: Mapping[TopicPartition, Spec],
        offsets: dict[TopicPartition, OffsetAt],
        limit_s: float,
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        """Request once the offsets that ``offsets`` lacks, and add them to it.

        Raise the first error after all responses have arrived.
        """
        missing = {
            KafkaTopicPartition(*partition): _spec(spec)
            for partition, spec in wanted.items()
            if partition not in offsets
        }
        if not missing:
            return
        futures = self._admin.client.list_offsets(
            missing, isolation_level=IsolationLevel[isolation.upper()], request_timeout=limit_s
        )
        failure: ClientError | None = None
        for requested, future in futures.items():
            try:
                offsets[TopicPartition(requested.topic, requested.partition)] = self._offset(
                    requested, future
                )
            except ClientError as error:
                failure = failure or error
        if failure is not None:
            if failure.code is None or failure.code in PASSING:
                self._refresh_leaders(
                    {partition.topic for partition in wanted if partition not in offsets}, limit_s
                )
            raise failure

    def _refresh_leaders(self, topics: Iterable[str], limit_s: float) -> None:
        """Make librdkafka look for the leaders of these topics.

        Otherwise it keeps sending to the leader it knows, even one that is gone.
        """
        for topic in sorted(topics):
            with suppress(KafkaException):
                interruptible(self._admin.client.list_topics, topic, timeout=limit_s)

    def _offset(self, requested: KafkaTopicPartition, future: Any) -> OffsetAt:
        partition = TopicPartition(requested.topic, requested.partition)
        listed = self._admin.wait(
            future, doing=f"list the offsets of {partition}", subject=requested.topic
        )
        if listed.offset == _UNKNOWN_OFFSET:
            raise refusal(
                ErrorCode.LEADER_NOT_AVAILABLE,
                doing=f"list the offsets of {partition}",
                subject=requested.topic,
            )
        return OffsetAt(listed.offset, listed.timestamp)

    def earliest(self, topic: str) -> dict[TopicPartition, int]:
        """Return the first offset of every partition that is not deleted."""
        return self._of_topic(topic, "earliest")

    def latest(
        self, topic: str, *, isolation: Isolation = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        """Return the offset of the next record of every partition.

        That is the high watermark, or with read_committed the last stable offset.
        """
        return self._of_topic(topic, "latest", isolation)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records before an offset (-1: all); return each partition's new first offset."""
        low: dict[TopicPartition, int] = {}
        self._admin.retries.run(
            lambda limit_s: self._delete_missing(before, low), doing="delete records"
        )
        return low

    def _delete_missing(
        self, before: Mapping[TopicPartition, int], low: dict[TopicPartition, int]
    ) -> None:
        """Delete once. It may be repeated: records that are gone already are no error."""
        requested = [
            KafkaTopicPartition(*partition, offset)
            for partition, offset in before.items()
            if partition not in low
        ]
        timeout_s = self._admin.connection.request_timeout_s
        futures = self._admin.client.delete_records(
            requested, request_timeout=timeout_s, operation_timeout=timeout_s
        )
        for deleted, future in futures.items():
            partition = TopicPartition(deleted.topic, deleted.partition)
            doing = f"delete the records of {partition} before {before[partition]}"
            low[partition] = self._admin.wait(
                future, doing=doing, subject=deleted.topic
            ).low_watermark

    def _of_topic(
        self, topic: str, spec: Spec, isolation: Isolation = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        partitions: Iterable[TopicPartition] = self._admin.topics.partitions(topic)
        results = self.list(dict.fromkeys(partitions, spec), isolation=isolation)
        return {partition: result.offset for partition, result in results.items()}


def _spec(spec: Spec) -> Any:
    if isinstance(spec, int):
        return OffsetSpec.for_timestamp(spec)
    return getattr(OffsetSpec, spec)()
