"""Applies the records of a consumer group to its state, at replay and within decisions.

Tombstones for unknown members are ignored: after compaction the records before them may be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.decisions import CoordinatorRecord
from millstream.groups.consumer import records
from millstream.groups.consumer.group import ConsumerGroup, ResolvedRegex
from millstream.groups.consumer.member import (
    LEAVE_EPOCH,
    ConsumerMember,
    Current,
    Info,
    MemberState,
)
from millstream.wire.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)

_NO_EPOCH = -1
# A member whose assignment is deleted, shortly before it is removed.
_GONE = Current(epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, state=MemberState.STABLE)


def apply(group: ConsumerGroup, record: CoordinatorRecord) -> None:
    """Apply any record of the group except its last tombstone."""
    _APPLY[type(record.key)](group, record.key, record.value)


def _apply_epoch(group: ConsumerGroup, key: Any, value: Any) -> None:
    if value is not None:
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash


def _apply_partition_metadata(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.has_partition_metadata = value is not None


def _apply_member(group: ConsumerGroup, key: Any, value: Any) -> None:
    old = group.members.get(key.member_id)
    if value is not None:
        group.replace(old, (old or ConsumerMember(key.member_id)).with_info(Info.of(value)))
    elif old is not None:
        group.replace(old, None)


def _apply_current(group: ConsumerGroup, key: Any, value: Any) -> None:
    old = group.members.get(key.member_id)
    if value is not None:
        group.replace(old, (old or ConsumerMember(key.member_id)).with_current(Current.of(value)))
    elif old is not None:
        group.replace(old, old.with_current(_GONE))


def _apply_target_epoch(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.assignment_epoch = value.assignment_epoch if value is not None else _NO_EPOCH
    group.assignment_timestamp = (
        value.assignment_timestamp if value is not None else records.NO_TIME
    )


def _apply_target(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.own("target")
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        rows = value.topic_partitions
        group.target[key.member_id] = {row.topic_id: frozenset(row.partitions) for row in rows}


def _apply_regex(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.own("regexes")
    if value is None:
        group.regexes.pop(key.regular_expression, None)
    else:
        resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
        group.regexes[key.regular_expression] = resolved


_APPLY: dict[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    ConsumerGroupMetadataKey: _apply_epoch,
    ConsumerGroupPartitionMetadataKey: _apply_partition_metadata,
    ConsumerGroupMemberMetadataKey: _apply_member,
    ConsumerGroupCurrentMemberAssignmentKey: _apply_current,
    ConsumerGroupTargetAssignmentMetadataKey: _apply_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: _apply_target,
    ConsumerGroupRegularExpressionKey: _apply_regex,
}
KEYS = frozenset(_APPLY)
