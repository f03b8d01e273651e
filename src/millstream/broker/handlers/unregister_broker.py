"""UnregisterBroker: a broker that was stopped for good no longer counts for placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await broker.controller.unregister_broker(request.broker_id)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the next one is asked
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()
