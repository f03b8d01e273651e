"""OffsetCommit: store how far a group has read; answered when the offsets are durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import answer
from millstream.core.errors import ApiError
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def handle(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> Any:
    return answer(
        broker,
        context,
        request.group_id,
        "decide_offset_commit",
        request,
        lambda error: _failure(request, error),
    )


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
