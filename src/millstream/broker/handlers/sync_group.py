"""SyncGroup: the answer comes when the leader has handed in the assignment. From v5 a member says which protocol it takes it for."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import answer
from millstream.core.errors import ErrorCode
from millstream.groups.shard import GroupShard
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


_NAMES_PROTOCOL = 5


def handle(
    services: GroupServices, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Decided at once: later requests of the connection are handled while the leader assigns."""
    if context.version >= _NAMES_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return answer(
        services,
        context,
        request.group_id,
        GroupShard.decide_sync,
        request,
        lambda error: SyncGroupResponse(error_code=error.code),
    )
