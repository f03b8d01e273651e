"""Responses of classic groups."""

from __future__ import annotations

from millstream.core.errors import ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.member import Member
from millstream.groups.classic.states import State
from millstream.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from millstream.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from millstream.wire.messages.sync_group import SyncGroupResponse

NO_MEMBER = ""


def join_error(error: ErrorCode, member_id: str = NO_MEMBER) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


def joined(
    group: ClassicGroup, member_id: str, *, include_members: bool, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Return the response to a join that succeeded; the leader's response lists the members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=_members(group) if include_members else [],
    )


def _members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def described(group: ClassicGroup) -> DescribedGroup:
    """Describe a group. Protocol and subscriptions are included only if the group is stable.

    Before that they may still change.
    """
    stable = group.state is State.STABLE
    protocol = group.protocol_name if stable else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_described_member(member, protocol) for member in group.members.values()],
    )


def _described_member(member: Member, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if protocol is not None else b"",
        member_assignment=member.assignment,
    )


def described_dead(group_id: str, version: int) -> DescribedGroup:
    """Describe a group that does not exist or is not classic: an error since v6."""
    if version < 6:
        return DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} not found.",
        group_id=group_id,
        group_state=State.DEAD.value,
    )
