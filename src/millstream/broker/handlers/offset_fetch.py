"""OffsetFetch: committed offsets. The response has only offsets that are durable.

* v1: only partitions have errors. v2 adds an error for the group, and null topics mean all.
* v5: the leader epoch of the offset (KIP-320).
* v7: ``require_stable`` withholds offsets that an open transaction may replace (KIP-447).
* v8: many groups in one request (KIP-709).
* v9: the member's id and epoch are checked (KIP-848).
* v10: topics by id.

An unknown group has no offsets, which is not an error. With ``require_stable``, a coordinator
responds only after it has confirmed that it was not replaced. A consumer that continued a
transaction from stale offsets would process records again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import add_response, chunks, is_large
from millstream.broker.requests.groups import call_group
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
    (response,) = await _fetch(services, context, request, [group])
    return await run_steps(single(response, group, context.version))


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
    responses: list[OffsetFetchResponseGroup] = []
    # All offsets of a group are looked up once, however often a request names it.
    complete: dict[tuple[str, str | None, int], OffsetFetchResponseGroup] = {}
    for group in groups:
        key = group.group_id, group.member_id, group.member_epoch
        if group.group_id in unconfirmed:
            response = await run_steps(error_response(group, unconfirmed[group.group_id].code))
        elif group.topics is None and key in complete:
            response = complete[key]
        else:
            response = await _fetch_group(services, context, request, group, pace)
        if group.topics is None:
            complete[key] = response
        responses.append(response)
        await pace.rest()
    return responses


async def _fetch_group(
    services: OffsetServices,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
    pace: Pace,
) -> OffsetFetchResponseGroup:
    try:
        if group.topics is None or not is_large(group.topics, "partition_indexes"):
            return await _call(services, context, request, group)
        merged = OffsetFetchResponseGroup(group_id=group.group_id)
        for chunk in chunks(group.topics, "partition_indexes"):
            part = OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                topics=chunk.topics,
            )
            response = await _call(services, context, request, part)
            if response.error_code:
                return response
            add_response(merged.topics, response.topics, chunk.continues)
            await pace.rest()
        return merged
    except ApiError as error:
        return await run_steps(error_response(group, error.code))


async def _call(
    services: OffsetServices,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    decide = _decide_stable if request.require_stable else GroupShard.decide_offset_fetch
    return await call_group(services, context, group.group_id, decide, group)


def _decide_stable(
    shard: GroupShard,
    group: OffsetFetchRequestGroup,
    context: GroupContext,
    waiter: Waiter[OffsetFetchResponseGroup],
    *,
    now_ms: int,
) -> Decision:
    return shard.decide_offset_fetch(group, context, waiter, require_stable=True, now_ms=now_ms)
