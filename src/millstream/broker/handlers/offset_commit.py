"""OffsetCommit: store how far a group has read; answered when the offsets are durable."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Hold
from millstream.broker.requests.chunks import add_answer, chunks, is_large
from millstream.broker.requests.groups import answer
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
    return answer(
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
    """Called for frames above `dispatch.LARGE_BYTES`: a smaller one has hardly more partitions than a chunk."""
    if is_large(request.topics, "partitions"):
        return Hold(_in_chunks(services, context, request))
    return handle(services, context, request)


async def _in_chunks(
    services: OffsetServices, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Each partition is committed or refused on its own, so that they need not share one batch of records."""
    pace, whole = Pace(), OffsetCommitResponse()
    for chunk in chunks(request.topics, "partitions"):
        values = {field.name: getattr(request, field.name) for field in request.fields}
        some = OffsetCommitRequest(**(values | {"topics": chunk.topics}))
        result = handle(services, context, some)
        response = await result if isinstance(result, Awaitable) else result
        add_answer(whole.topics, response.topics, chunk.continues)
        await pace.rest()
    return whole


def _failure(request: OffsetCommitRequest, error: ApiError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error.code)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
