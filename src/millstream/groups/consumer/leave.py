"""Members that leave a consumer group, temporarily or for good, and members that are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.core.decisions import Decision, Disarm, Reply, Waiter
from millstream.groups.consumer import checks, records
from millstream.groups.consumer.draft import Draft
from millstream.groups.consumer.member import (
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    Owned,
    rebalance_timer,
)
from millstream.groups.consumer.subscription import metadata_hash
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def leaver(draft: Draft, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """Return the member that wants to leave; raise ApiError if it is unknown."""
    if request.instance_id is not None:
        return checks.static_member(draft.group, request.instance_id, request.member_id)
    member = draft.group.members.get(request.member_id)
    if member is None:
        raise checks.unknown_member(draft.group, request.member_id)
    return member


def reply(
    member: ConsumerMember, epoch: int, waiter: Waiter[ConsumerGroupHeartbeatResponse]
) -> Reply[ConsumerGroupHeartbeatResponse]:
    return Reply(
        waiter, ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=epoch)
    )


def leave_temporarily(
    draft: Draft, member: ConsumerMember, waiter: Waiter[ConsumerGroupHeartbeatResponse]
) -> Decision:
    """Keep the assignment of a static member until its session expires.

    The member that rejoins with its instance id gets it; the partitions count as owned since epoch
    0. Partitions that it was revoking are released.
    """
    current = replace(
        member.current,
        epoch=STATIC_LEAVE_EPOCH,
        assigned=_owned_since_zero(member.current.assigned),
        revoking={},
    )
    draft.emit(records.current(draft.group_id, member.member_id, current))
    draft.effects.append(Disarm(rebalance_timer(draft.group_id, member.member_id)))
    draft.effects.append(reply(member, STATIC_LEAVE_EPOCH, waiter))
    return draft.decision()


def _owned_since_zero(assigned: Owned) -> Owned:
    return {topic_id: dict.fromkeys(rows, 0) for topic_id, rows in assigned.items()}


def fence(draft: Draft, members: Sequence[ConsumerMember]) -> None:
    """Remove members and release their partitions.

    The others get a new assignment with the next heartbeat of any member.
    """
    for member in members:
        draft.remove(member)
    draft.drop_unused_regexes()
    group = draft.group
    computed = metadata_hash(group.subscribed(), draft.env.topics)
    draft.emit(records.group_epoch(draft.group_id, group.epoch + 1, computed))
    if not draft.group.members:
        draft.emit(records.target_epoch(draft.group_id, draft.group.epoch, records.NO_TIME))
