"""Heartbeat: a member of a classic group is alive. The response says whether it must rejoin.

* v3: the instance id of a static member (KIP-345).

While the coordinator loads the group, the response has no error, as in Kafka: the member must not
leave for that.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import respond
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.shard import GroupShard
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


def handle(
    services: GroupServices, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    return respond(
        services, context, request.group_id, GroupShard.decide_heartbeat, request, _rejection
    )


def _rejection(error: ApiError) -> HeartbeatResponse:
    loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error.code)
