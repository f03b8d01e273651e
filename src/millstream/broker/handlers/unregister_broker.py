"""UnregisterBroker: a broker that was shut down for good no longer counts for placement.

The controller executes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await services.local_controller.unregister_broker(request.broker_id)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the request goes to the next controller
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()
