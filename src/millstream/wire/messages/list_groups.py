"""ListGroups (key 16): the groups of this coordinator, filtered by state (v4) and by type (v5)."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int16, int32, string


class ListGroupsRequest(Struct, versions="0-5", flexible="3+"):
    states_filter: list[str] = array("string", "4+")
    types_filter: list[str] = array("string", "5+")


class ListedGroup(Struct):
    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+")
    group_type: str = string("5+")


class ListGroupsResponse(Struct, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")
