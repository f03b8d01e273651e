"""ConsumerGroupHeartbeat: join, stay in, change and leave a consumer group (KIP-848).

* v1: subscriptions by regular expression, which the coordinator resolves, and a member id that the
  client must choose. In v0 the coordinator may assign it.

Needs ``group.version`` 1. Otherwise the response is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import check_consumer_protocol, respond
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
        return _rejection(error)
    return respond(
        services,
        context,
        request.group_id,
        GroupShard.decide_consumer_heartbeat,
        request,
        _rejection,
    )


def _rejection(error: ApiError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
