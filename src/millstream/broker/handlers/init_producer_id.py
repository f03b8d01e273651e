"""InitProducerId: an id for idempotent producing. A transactional id needs its coordinator, which does not exist yet."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    if request.transactional_id is not None:
        empty = request.transactional_id == ""
        code = ErrorCode.INVALID_REQUEST if empty else ErrorCode.COORDINATOR_NOT_AVAILABLE
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    halves = (request.producer_id < 0) != (request.producer_epoch < 0)
    if halves or request.enable_two_phase_commit or request.keep_prepared_txn:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    return _new_id(broker)


async def _new_id(broker: Broker) -> InitProducerIdResponse:
    # KIP-360: without a transactional id a bumped epoch would mean nothing, a fresh id does the same.
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next_id(), producer_epoch=0)
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
