"""Heartbeat: a classic member is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    try:
        response: HeartbeatResponse = await ask(
            broker, context, request.group_id, "decide_heartbeat", request
        )
    except ApiError as error:
        return HeartbeatResponse(error_code=error.code)
    return response
