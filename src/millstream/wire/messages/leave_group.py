"""LeaveGroup (key 13): members leave a classic group; several at once from v3."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int16, int32, string


class MemberIdentity(Struct):
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None)


class LeaveGroupRequest(Struct, versions="0-5", flexible="4+"):
    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


class MemberResponse(Struct):
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Struct, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")
