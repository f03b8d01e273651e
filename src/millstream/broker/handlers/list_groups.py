"""ListGroups: the groups of every shard that this broker leads; filters by state (v4) and type (v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import group_context
from millstream.core.errors import ApiError
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    who = group_context(context)
    try:
        parts = await broker.coordinators.groups.everywhere(
            lambda shard, waiter, now_ms: shard.decide_list(request, who, waiter, now_ms=now_ms)
        )
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=[group for part in parts for group in part.groups])
