"""ConsumerGroupHeartbeat: everything a member of a consumer group says and hears (KIP-848)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import answer, check_consumer_protocol
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConsumerGroupServices


def handle(
    services: ConsumerGroupServices, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    try:
        check_consumer_protocol(services)
    except ApiError as error:
        return _refusal(error)
    return answer(
        services, context, request.group_id, GroupShard.decide_consumer_heartbeat, request, _refusal
    )


def _refusal(error: ApiError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
