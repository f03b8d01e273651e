"""FindCoordinator: the broker that coordinates a group or a transactional id.

It is the leader of the key's partition of the internal topic. Any broker responds, and the first
request creates the topic.

* v1: the key type, group or transaction.
* v4: many keys in one request (KIP-699).
* v6: share groups (KIP-932). They are not supported: a valid key gets COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import once_each
from millstream.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import CoordinatorServices


async def handle(
    services: CoordinatorServices, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.version < 4:
        coordinator = await _find(services, context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )
    coordinators = await once_each(
        request.coordinator_keys, lambda key: _find(services, context, request.key_type, key)
    )
    return FindCoordinatorResponse(coordinators=coordinators)


async def _find(
    services: CoordinatorServices, context: RequestContext, key_type: int, key: str
) -> Coordinator:
    try:
        node_id = await services.coordinators.find(key_type, key, context.version)
        node = services.nodes.get(node_id, context.connection.listener)
        if node is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except ApiError as error:
        return Coordinator(
            key=key,
            node_id=-1,
            host="",
            port=-1,
            error_code=error.code,
            error_message=error.message,
        )
    return Coordinator(
        key=key,
        node_id=node.node_id,
        host=node.host,
        port=node.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )
