"""OffsetDelete: forget offsets of topics that the group does not subscribe to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    try:
        response: OffsetDeleteResponse = await ask(
            broker, context, request.group_id, "decide_offset_delete", request
        )
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return response
