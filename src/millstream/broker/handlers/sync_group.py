"""SyncGroup: the answer comes when the leader has handed in the assignment. From v5 a member says which protocol it takes it for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


_NAMES_PROTOCOL = 5


async def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    if context.version >= _NAMES_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        response: SyncGroupResponse = await ask(broker, context, request.group_id, "decide_sync", request)
    except ApiError as error:
        return SyncGroupResponse(error_code=error.code)
    return response
