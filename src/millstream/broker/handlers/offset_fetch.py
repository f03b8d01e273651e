"""OffsetFetch: committed offsets of one group (up to v7) or of many. Answered only when what is told is durable.

Null topics mean all; an unknown group has no offsets, which is no error. With ``require_stable`` offsets of an open transaction are
withheld (KIP-447), and a coordinator that was replaced without knowing it does not answer: whoever goes on from there in transactions would do again
what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker

_MANY_GROUPS = 8


async def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= _MANY_GROUPS:
        return OffsetFetchResponse(groups=await _fetch(broker, context, request, request.groups))
    (answer,) = await _fetch(broker, context, request, [_as_group(request)])
    return _as_single(answer)


async def _fetch(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    groups: Sequence[OffsetFetchRequestGroup],
) -> list[OffsetFetchResponseGroup]:
    refused: Mapping[str, ApiError] = {}
    if request.require_stable:
        refused = await broker.coordinators.groups.unconfirmed(group.group_id for group in groups)
    return [
        _failure(group, refused[group.group_id])
        if group.group_id in refused
        else await _one(broker, context, request, group)
        for group in groups
    ]


async def _one(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    try:
        answer: OffsetFetchResponseGroup = await ask(
            broker,
            context,
            group.group_id,
            "decide_offset_fetch",
            group,
            require_stable=request.require_stable,
        )
    except ApiError as error:
        return _failure(group, error)
    return answer


def _failure(group: OffsetFetchRequestGroup, error: ApiError) -> OffsetFetchResponseGroup:
    """The code stands at the group and, for clients that look nowhere else, at every partition."""
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=error.code,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, metadata="", error_code=error.code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in group.topics or ()
        ],
    )


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _as_single(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
