"""Constructors for the records of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.decisions import CoordinatorRecord
from millstream.groups.consumer.member import Current, Info, Partitions
from millstream.wire.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
)

# The assignment has no members, or its time is unknown.
NO_TIME = 0


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def member(group_id: str, member_id: str, info: Info | None) -> CoordinatorRecord:
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, info.value() if info is not None else None)


def current(group_id: str, member_id: str, assignment: Current | None) -> CoordinatorRecord:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return CoordinatorRecord(key, assignment.value() if assignment is not None else None)


def target_epoch(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=now_ms
    )
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target(group_id: str, member_id: str, partitions: Partitions | None) -> CoordinatorRecord:
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    if partitions is None:
        return CoordinatorRecord(key, None)
    rows = [
        TopicPartition(topic_id=topic_id, partitions=sorted(indexes))
        for topic_id, indexes in sorted(partitions.items())
    ]
    return CoordinatorRecord(key, ConsumerGroupTargetAssignmentMemberValue(topic_partitions=rows))


def regex(
    group_id: str, pattern: str, topics: Iterable[str], version: int, now_ms: int
) -> CoordinatorRecord:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(topics), version=version, timestamp=now_ms
    )
    return CoordinatorRecord(key, value)


def regex_tombstone(group_id: str, pattern: str) -> CoordinatorRecord:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return CoordinatorRecord(key, None)


def member_tombstones(group_id: str, member_id: str) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of a member, in order: its assignment is deleted before the member."""
    return (
        current(group_id, member_id, None),
        target(group_id, member_id, None),
        member(group_id, member_id, None),
    )


def group_tombstones(
    group_id: str, member_ids: Iterable[str], patterns: Iterable[str]
) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of everything about a group, the group itself last."""
    ids = list(member_ids)
    return (
        *(current(group_id, member_id, None) for member_id in ids),
        *(target(group_id, member_id, None) for member_id in ids),
        CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(member(group_id, member_id, None) for member_id in ids),
        *(regex_tombstone(group_id, pattern) for pattern in patterns),
        partition_metadata_tombstone(group_id),
        CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), None),
    )


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the tombstone of the partition metadata, which only Kafka 4.0 writes.

    Later versions, and this broker, write a hash of it instead.
    """
    return CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
