"""JoinGroup: the answer comes when the group's next generation has its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    try:
        response: JoinGroupResponse = await ask(broker, context, request.group_id, "decide_join", request)
    except ApiError as error:
        return JoinGroupResponse(error_code=error.code, member_id=request.member_id)
    return response
