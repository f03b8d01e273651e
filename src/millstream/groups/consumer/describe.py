"""ConsumerGroupDescribe: a group with its members, their assignments and targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.groups.consumer.draft import Environment
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


def response(
    env: Environment, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_described(env, row) for row in request.group_ids])


def _described(env: Environment, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID, group_id=group_id)
    group: ConsumerGroup | None = env.state.consumer.get(group_id)
    if group is None:
        message = f"consumer group {group_id} does not exist"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message, group_id=group_id
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(env.assignors),
        members=[_member(group, member, env.topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> Member:
    """Describe a member. Partitions it is revoking count as assigned until it has revoked them."""
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
    """Return an assignment without deleted topics, which have no name."""
    rows = []
    for topic_id, indexes in sorted(partitions.items()):
        name = topics.name_of(topic_id)
        if name is not None:
            rows.append(
                TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            )
    return Assignment(topic_partitions=rows)
