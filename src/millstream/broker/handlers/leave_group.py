"""LeaveGroup: members leave at once instead of by timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(broker: Broker, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    try:
        response: LeaveGroupResponse = await ask(broker, context, request.group_id, "decide_leave", request)
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.code)
    return response
