"""ConsumerGroupDescribe: a group with its members, what each of them has, and what it is meant to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.groups.consumer.draft import Surroundings
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.member import ConsumerMember
from millstream.groups.topics_view import Topics
from millstream.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC, _CONSUMER = 0, 1


def response(around: Surroundings, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_described(around, row) for row in request.group_ids])


def _described(around: Surroundings, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID, group_id=group_id)
    group: ConsumerGroup | None = around.state.consumer.get(group_id)
    if group is None:
        message = f"there is no consumer group {group_id}"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message, group_id=group_id
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(around.assignors),
        members=[_member(group, member, around.topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> Member:
    """What it is giving back counts as its own until it has."""
    info, current = member.info, member.current
    held: dict[bytes, list[int]] = {}
    for topic_id, partition in current.partitions():
        held.setdefault(topic_id, []).append(partition)
    return Member(
        member_id=member.member_id,
        instance_id=info.instance_id,
        rack_id=info.rack_id,
        member_epoch=current.epoch,
        client_id=info.client_id,
        client_host=info.client_host,
        subscribed_topic_names=sorted(info.topics),
        subscribed_topic_regex=info.regex,
        assignment=_assignment(held, topics),
        target_assignment=_assignment(group.target.get(member.member_id, {}), topics),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _assignment(partitions: Mapping[bytes, Iterable[Any]], topics: Topics) -> Assignment:
    """Topics that were deleted meanwhile have no name, and are left out."""
    rows = []
    for topic_id, indexes in sorted(partitions.items()):
        name = topics.name_of(topic_id)
        if name is not None:
            rows.append(TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes)))
    return Assignment(topic_partitions=rows)
