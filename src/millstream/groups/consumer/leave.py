"""Members that leave a consumer group, for a while or for good, and members that are put out of it."""

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
    """Who wants to leave. Raises ApiError."""
    if request.instance_id is not None:
        return checks.static_member(draft.group, request.instance_id, request.member_id)
    member = draft.group.members.get(request.member_id)
    if member is None:
        raise checks.unknown_member(draft.group, request.member_id)
    return member


def answer(
    member: ConsumerMember, epoch: int, waiter: Waiter[ConsumerGroupHeartbeatResponse]
) -> Reply[ConsumerGroupHeartbeatResponse]:
    return Reply(waiter, ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=epoch))


def leave_for_a_while(
    draft: Draft, member: ConsumerMember, waiter: Waiter[ConsumerGroupHeartbeatResponse]
) -> Decision:
    """What it has is kept for the one that comes back under its instance id before the session ends; it counts as had from the
    beginning. What it was giving back is free."""
    current = replace(
        member.current,
        epoch=STATIC_LEAVE_EPOCH,
        assigned=_from_the_beginning(member.current.assigned),
        revoking={},
    )
    draft.emit(records.current(draft.group_id, member.member_id, current))
    draft.effects.append(Disarm(rebalance_timer(draft.group_id, member.member_id)))
    draft.effects.append(answer(member, STATIC_LEAVE_EPOCH, waiter))
    return draft.decision()


def _from_the_beginning(assigned: Owned) -> Owned:
    return {topic_id: dict.fromkeys(rows, 0) for topic_id, rows in assigned.items()}


def fence(draft: Draft, members: Sequence[ConsumerMember]) -> None:
    """They are out, and what they had is free. The others are assigned anew at the next heartbeat of one of them."""
    for member in members:
        draft.remove(member)
    draft.drop_unused_regexes()
    group = draft.group
    computed = metadata_hash(group.subscribed(), draft.around.topics)
    draft.emit(records.group_epoch(draft.group_id, group.epoch + 1, computed))
    if not draft.group.members:
        draft.emit(records.target_epoch(draft.group_id, draft.group.epoch, records.NO_TIME))
