"""ConsumerGroupHeartbeat: everything a member of a consumer group says and hears (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    try:
        response: ConsumerGroupHeartbeatResponse = await ask(
            broker, context, request.group_id, "decide_consumer_heartbeat", request
        )
    except ApiError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    return response
