"""FindCoordinator: there are no coordinators yet, which clients take as "ask again"; v4 and later ask for many at once.

Advertised from the start all the same: without it librdkafka takes the broker for an ancient one and sends uncompressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker

GROUP, TRANSACTION, SHARE = 0, 1, 2


def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if request.key_type not in (GROUP, TRANSACTION, SHARE):
        code = ErrorCode.INVALID_REQUEST
    if context.version < 4:
        return FindCoordinatorResponse(
            error_code=code, error_message=code.message, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=[
            _unavailable(key, ErrorCode.INVALID_REQUEST if _malformed(request.key_type, key) else code)
            for key in request.coordinator_keys
        ]
    )


def _malformed(key_type: int, key: str) -> bool:
    """A share partition is named group:topic-id:partition."""
    return key_type == SHARE and key.count(":") < 2


def _unavailable(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.message)
