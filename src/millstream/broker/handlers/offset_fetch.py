"""OffsetFetch: committed offsets of one group (up to v7) or of many. Answered only when what is told is durable.

Null topics mean all; an unknown group has no offsets, which is no error. With ``require_stable`` offsets of an open transaction are
withheld (KIP-447), and a coordinator that was replaced without knowing it does not answer: whoever goes on from there in transactions would do again
what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import add_answer, chunks, is_large
from millstream.broker.requests.groups import ask
from millstream.core.decisions import Decision, Waiter
from millstream.core.errors import ApiError
from millstream.groups.offsets.fetch import error_response, group_of, single
from millstream.groups.shard import GroupShard
from millstream.groups.shard_state import GroupContext
from millstream.ports.turns import Pace, run_steps
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

if TYPE_CHECKING:
    from millstream.broker.services import OffsetServices

_MANY_GROUPS = 8


async def handle(
    services: OffsetServices, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    if context.version >= _MANY_GROUPS:
        return OffsetFetchResponse(groups=await _fetch(services, context, request, request.groups))
    group = await run_steps(group_of(request))
    (answer,) = await _fetch(services, context, request, [group])
    return await run_steps(single(answer, group, context.version))


async def _fetch(
    services: OffsetServices,
    context: RequestContext,
    request: OffsetFetchRequest,
    groups: Sequence[OffsetFetchRequestGroup],
) -> list[OffsetFetchResponseGroup]:
    unconfirmed: Mapping[str, ApiError] = {}
    if request.require_stable:
        unconfirmed = await services.groups.unconfirmed(group.group_id for group in groups)
    pace = Pace()
    answers: list[OffsetFetchResponseGroup] = []
    # All offsets of a group, named with a few bytes, are looked up once however often it is named.
    whole: dict[tuple[str, str | None, int], OffsetFetchResponseGroup] = {}
    for group in groups:
        key = group.group_id, group.member_id, group.member_epoch
        if group.group_id in unconfirmed:
            answer = await run_steps(error_response(group, unconfirmed[group.group_id].code))
        elif group.topics is None and key in whole:
            answer = whole[key]
        else:
            answer = await _one(services, context, request, group, pace)
        if group.topics is None:
            whole[key] = answer
        answers.append(answer)
        await pace.rest()
    return answers


async def _one(
    services: OffsetServices,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
    pace: Pace,
) -> OffsetFetchResponseGroup:
    try:
        if group.topics is None or not is_large(group.topics, "partition_indexes"):
            return await _ask(services, context, request, group)
        whole = OffsetFetchResponseGroup(group_id=group.group_id)
        for chunk in chunks(group.topics, "partition_indexes"):
            some = OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                topics=chunk.topics,
            )
            answer = await _ask(services, context, request, some)
            if answer.error_code:
                return answer
            add_answer(whole.topics, answer.topics, chunk.continues)
            await pace.rest()
        return whole
    except ApiError as error:
        return await run_steps(error_response(group, error.code))


async def _ask(
    services: OffsetServices,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    decide = _decide_stable if request.require_stable else GroupShard.decide_offset_fetch
    return await ask(services, context, group.group_id, decide, group)


def _decide_stable(
    shard: GroupShard,
    group: OffsetFetchRequestGroup,
    context: GroupContext,
    waiter: Waiter[OffsetFetchResponseGroup],
    *,
    now_ms: int,
) -> Decision:
    return shard.decide_offset_fetch(group, context, waiter, require_stable=True, now_ms=now_ms)
