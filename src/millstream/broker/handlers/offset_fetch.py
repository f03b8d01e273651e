"""OffsetFetch: committed offsets of one group (up to v7) or of many. Answered only when what is told is durable.

Null topics mean all; an unknown group has no offsets, which is no error. With ``require_stable`` offsets of an open transaction are
withheld (KIP-447), and a coordinator that was replaced without knowing it does not answer: whoever goes on from there in transactions would do again
what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.broker.chunks import add_answer, chunks, is_large
from millstream.broker.group_requests import ask
from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.ports.turns import Pace, Steps, run_steps
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
    (answer,) = await _fetch(broker, context, request, [await run_steps(_as_group(request))])
    return await run_steps(_as_single(answer))


async def _fetch(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    groups: Sequence[OffsetFetchRequestGroup],
) -> list[OffsetFetchResponseGroup]:
    refused: Mapping[str, ApiError] = {}
    if request.require_stable:
        refused = await broker.coordinators.groups.unconfirmed(group.group_id for group in groups)
    pace = Pace()
    answers: list[OffsetFetchResponseGroup] = []
    # All offsets of a group, named with a few bytes, are looked up once however often it is named.
    whole: dict[tuple[str, str | None, int], OffsetFetchResponseGroup] = {}
    for group in groups:
        key = group.group_id, group.member_id, group.member_epoch
        if group.group_id in refused:
            answer = await run_steps(_failure(group, refused[group.group_id]))
        elif group.topics is None and key in whole:
            answer = whole[key]
        else:
            answer = await _one(broker, context, request, group, pace)
        if group.topics is None:
            whole[key] = answer
        answers.append(answer)
        await pace.rest()
    return answers


async def _one(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
    pace: Pace,
) -> OffsetFetchResponseGroup:
    try:
        if group.topics is None or not is_large(group.topics, "partition_indexes"):
            return await _ask(broker, context, request, group)
        whole = OffsetFetchResponseGroup(group_id=group.group_id)
        for chunk in chunks(group.topics, "partition_indexes"):
            some = OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                topics=chunk.topics,
            )
            answer = await _ask(broker, context, request, some)
            if answer.error_code:
                return answer
            add_answer(whole.topics, answer.topics, chunk.continues)
            await pace.rest()
        return whole
    except ApiError as error:
        return await run_steps(_failure(group, error))


async def _ask(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    answer: OffsetFetchResponseGroup = await ask(
        broker,
        context,
        group.group_id,
        "decide_offset_fetch",
        group,
        require_stable=request.require_stable,
    )
    return answer


def _failure(group: OffsetFetchRequestGroup, error: ApiError) -> Steps[OffsetFetchResponseGroup]:
    """The code stands at the group and, for clients that look nowhere else, at every partition."""
    answer = OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    for topic in group.topics or ():
        rows: list[OffsetFetchResponsePartitions] = []
        answer.topics.append(
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)
        )
        for index in topic.partition_indexes:
            rows.append(
                OffsetFetchResponsePartitions(
                    partition_index=index, committed_offset=-1, metadata="", error_code=error.code
                )
            )
            yield
        yield
    return answer


def _as_group(request: OffsetFetchRequest) -> Steps[OffsetFetchRequestGroup]:
    if request.topics is None:
        return OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    topics = []
    for topic in request.topics:
        topics.append(OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes))
        yield
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _as_single(group: OffsetFetchResponseGroup) -> Steps[OffsetFetchResponse]:
    answer = OffsetFetchResponse(error_code=group.error_code)
    group.topics.reverse()
    while group.topics:
        topic = group.topics.pop()  # released here: all of them at once would take long
        rows: list[OffsetFetchResponsePartition] = []
        answer.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=rows))
        for row in topic.partitions:
            rows.append(
                OffsetFetchResponsePartition(
                    partition_index=row.partition_index,
                    committed_offset=row.committed_offset,
                    committed_leader_epoch=row.committed_leader_epoch,
                    metadata=row.metadata,
                    error_code=row.error_code,
                )
            )
            yield
        yield
    return answer
