"""DescribeGroups (key 15): state, protocol and members of classic groups.

An unknown group is Dead without an error up to v5, GROUP_ID_NOT_FOUND from v6.
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, binary, boolean, int16, int32, string


class DescribeGroupsRequest(Struct, versions="0-6", flexible="5+"):
    groups: list[str] = array("string", "0+")
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", nullable="4+", default=None)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = binary("0+")
    member_assignment: bytes = binary("0+")


class DescribedGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-2147483648)


class DescribeGroupsResponse(Struct, versions="0-6", flexible="5+"):
    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")
