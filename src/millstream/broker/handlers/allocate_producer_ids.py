"""AllocateProducerIds: the controller gives a block of producer ids to a broker.

Between brokers only. A broker that has registered again since gets STALE_BROKER_EPOCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    try:
        registered = services.member.state.image.brokers.get(request.broker_id)
        if registered is None or registered.epoch != request.broker_epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        block = await services.local_controller.allocate_producer_ids(request.broker_id)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=block[0], producer_id_len=len(block))
