"""SyncGroup: the answer comes when the leader has handed in the assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.group_requests import ask
from millstream.core.errors import ApiError
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    try:
        response: SyncGroupResponse = await ask(broker, context, request.group_id, "decide_sync", request)
    except ApiError as error:
        return SyncGroupResponse(error_code=error.code)
    return response
