"""OffsetCommit: store how far a group has read. The response comes when the offsets are durable.

* v2-v4: the retention time of the offsets. From v5 on only the broker's setting counts (KIP-211).
* v6: the leader epoch of the offset (KIP-320).
* v7: the instance id of a static member (KIP-345).
* v9: members of consumer groups (KIP-848). They get UNSUPPORTED_VERSION before. An unknown group
  gets GROUP_ID_NOT_FOUND, and ILLEGAL_GENERATION before.
* v10: topics by id (KIP-848).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Hold
from millstream.broker.requests.chunks import add_response, chunks, is_large
from millstream.broker.requests.groups import respond
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.ports.turns import Pace
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.services import OffsetServices


def handle(
    services: OffsetServices, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    return respond(
        services,
        context,
        request.group_id,
        GroupShard.decide_offset_commit,
        request,
        lambda error: _failure(request, error),
    )


def handle_large(
    services: OffsetServices, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse] | Hold:
    """Handle frames above ``dispatch.LARGE_BYTES``. Smaller ones hardly exceed a chunk."""
    if is_large(request.topics, "partitions"):
        return Hold(_in_chunks(services, context, request))
    return handle(services, context, request)


async def _in_chunks(
    services: OffsetServices, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Commit in chunks: each partition succeeds or fails alone, so one batch is not needed."""
    pace, merged = Pace(), OffsetCommitResponse()
    for chunk in chunks(request.topics, "partitions"):
        values = {field.name: getattr(request, field.name) for field in request.fields}
        part = OffsetCommitRequest(**(values | {"topics": chunk.topics}))
        result = handle(services, context, part)
        response = await result if isinstance(result, Awaitable) else result
        add_response(merged.topics, response.topics, chunk.continues)
        await pace.rest()
    return merged


def _failure(request: OffsetCommitRequest, error: ApiError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=error.code
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
