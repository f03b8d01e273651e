"""Heartbeat: a classic member is alive."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import answer
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.shard import GroupShard
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


def handle(
    services: GroupServices, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    return answer(services, context, request.group_id, GroupShard.decide_heartbeat, request, _refusal)


def _refusal(error: ApiError) -> HeartbeatResponse:
    # While the group is being read nothing is known against the member: it must not leave for that.
    loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error.code)
