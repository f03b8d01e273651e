"""LeaveGroup for a classic group.

v0-2 have a single member. v3+ have many, by member id or (for an operator) only by instance id.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.decisions import Decision, Reply, Waiter
from millstream.core.errors import ErrorCode
from millstream.groups.classic.draft import Draft
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.states import State
from millstream.groups.shard_state import GroupContext, ShardState
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

_BATCHED = 3


def members_of(request: LeaveGroupRequest, version: int) -> Sequence[MemberIdentity]:
    return request.members if version >= _BATCHED else [MemberIdentity(member_id=request.member_id)]


def response(members: list[MemberResponse], version: int) -> LeaveGroupResponse:
    """Return the response. Before v3 it has room for a single error."""
    if version >= _BATCHED:
        return LeaveGroupResponse(members=members)
    return LeaveGroupResponse(error_code=members[0].error_code)


def member_response(member: MemberIdentity, error: ErrorCode = ErrorCode.NONE) -> MemberResponse:
    return MemberResponse(
        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error
    )


def decide(
    state: ShardState,
    request: LeaveGroupRequest,
    context: GroupContext,
    waiter: Waiter[LeaveGroupResponse],
    now_ms: int,
) -> Decision:
    """Decide about members that leave a group that is classic, simple or unknown."""
    group = state.classic.get(request.group_id)
    leaving = members_of(request, context.version)
    if group is None:
        unknown = [member_response(member, ErrorCode.UNKNOWN_MEMBER_ID) for member in leaving]
        return Decision(effects=(Reply(waiter, response(unknown, context.version)),))
    draft = Draft(group, state.settings, now_ms)
    results = [member_response(member, _leave(draft, member)) for member in leaving]
    reply = Reply(waiter, response(results, context.version))
    if all(result.error_code for result in results):
        return Decision(effects=(reply,))
    if len(draft.group.members) < len(group.members) or group.state is State.PREPARING_REBALANCE:
        draft.rebalance()
    return draft.decision() + Decision(effects=(reply,))


def _leave(draft: Draft, member: MemberIdentity) -> ErrorCode:
    member_id, error = _find(draft.group, member)
    if error is ErrorCode.NONE:
        draft.drop(member_id)
    return error


def _find(group: ClassicGroup, member: MemberIdentity) -> tuple[str, ErrorCode]:
    member_id = member.member_id
    if not member_id:
        instance_id = member.group_instance_id
        by_instance = group.instances.get(instance_id) if instance_id is not None else None
        return (by_instance, ErrorCode.NONE) if by_instance else ("", ErrorCode.UNKNOWN_MEMBER_ID)
    if member_id in group.pending:
        return member_id, ErrorCode.NONE
    return member_id, group.check_member(member_id, member.group_instance_id)
