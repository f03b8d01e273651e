"""DeleteGroups (key 42): delete groups without members."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int16, int32, string


class DeleteGroupsRequest(Struct, versions="0-3", flexible="2+"):
    groups_names: list[str] = array("string", "0+")


class DeletableGroupResult(Struct):
    group_id: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("3+", nullable="3+", default=None)


class DeleteGroupsResponse(Struct, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")
