"""UnregisterBroker: a broker that was stopped for good no longer counts for placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await services.local_controller.unregister_broker(request.broker_id)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the next one is asked
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()
