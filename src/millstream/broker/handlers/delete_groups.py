"""DeleteGroups: delete groups that have no members, with their offsets.

* v3: the result of a group may have an error message. This broker sends none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import call_group
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.ports.turns import Pace
from millstream.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


async def handle(
    services: GroupServices, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results: dict[str, DeletableGroupResult] = {}
    pace = Pace()
    for group_id in request.groups_names:
        if group_id not in results:
            results[group_id] = await _delete(services, context, group_id)
        await pace.rest()
    return DeleteGroupsResponse(results=list(results.values()))


async def _delete(
    services: GroupServices, context: RequestContext, group_id: str
) -> DeletableGroupResult:
    try:
        response = await call_group(
            services,
            context,
            group_id,
            GroupShard.decide_delete,
            DeleteGroupsRequest(groups_names=[group_id]),
        )
    except ApiError as error:
        return DeletableGroupResult(group_id=group_id, error_code=error.code)
    return response.results[0]
