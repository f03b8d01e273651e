"""LeaveGroup: members leave a classic group at once instead of by timeout.

* v3: several members, also static ones by their instance id (KIP-345), with a result for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import MAX_PER_CHUNK
from millstream.broker.requests.groups import call_group
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.ports.turns import Pace
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


async def handle(
    services: GroupServices, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    if len(request.members) <= MAX_PER_CHUNK:
        return await _leave(services, context, request)
    pace, merged = Pace(), LeaveGroupResponse()
    for start in range(0, len(request.members), MAX_PER_CHUNK):
        members = request.members[start : start + MAX_PER_CHUNK]
        chunk = LeaveGroupRequest(group_id=request.group_id, members=members)
        response = await _leave(services, context, chunk)
        if response.error_code:
            return response
        merged.members += response.members
        await pace.rest()
    return merged


async def _leave(
    services: GroupServices, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    try:
        return await call_group(
            services, context, request.group_id, GroupShard.decide_leave, request
        )
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.code)
