"""OffsetDelete: delete committed offsets of topics without a subscription (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import add_response, chunks, is_large
from millstream.broker.requests.groups import call_group
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.ports.turns import Pace
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

if TYPE_CHECKING:
    from millstream.broker.services import OffsetServices


async def handle(
    services: OffsetServices, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    if not is_large(request.topics, "partitions"):
        return await _delete(services, context, request)
    pace, merged = Pace(), OffsetDeleteResponse()
    for chunk in chunks(request.topics, "partitions"):
        part = OffsetDeleteRequest(group_id=request.group_id, topics=chunk.topics)
        response = await _delete(services, context, part)
        if response.error_code:
            return response
        add_response(merged.topics, response.topics, chunk.continues)
        await pace.rest()
    return merged


async def _delete(
    services: OffsetServices, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    try:
        return await call_group(
            services, context, request.group_id, GroupShard.decide_offset_delete, request
        )
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
