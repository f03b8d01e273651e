"""Heartbeat (key 12): a classic member is alive; the response states whether to rejoin."""

from __future__ import annotations

from millstream.wire.schema import Struct, int16, int32, string


class HeartbeatRequest(Struct, versions="0-4", flexible="4+"):
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Struct, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
