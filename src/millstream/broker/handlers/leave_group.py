"""LeaveGroup: members leave at once instead of by timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import MOST_AT_ONCE
from millstream.broker.requests.groups import ask
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.ports.turns import Pace
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


async def handle(
    services: GroupServices, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    if len(request.members) <= MOST_AT_ONCE:
        return await _leave(services, context, request)
    pace, whole = Pace(), LeaveGroupResponse()
    for start in range(0, len(request.members), MOST_AT_ONCE):
        members = request.members[start : start + MOST_AT_ONCE]
        some = LeaveGroupRequest(group_id=request.group_id, members=members)
        response = await _leave(services, context, some)
        if response.error_code:
            return response
        whole.members += response.members
        await pace.rest()
    return whole


async def _leave(
    services: GroupServices, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    try:
        return await ask(services, context, request.group_id, GroupShard.decide_leave, request)
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.code)
