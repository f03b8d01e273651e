"""SyncGroup: a classic member gets its part of the assignment, once the leader has sent it.

* v3: the instance id of a static member (KIP-345).
* v5: protocol type and name are required, and must be those of the group (KIP-559).

Later requests of the connection may overtake it while it waits.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import respond
from millstream.core.errors import ErrorCode
from millstream.groups.shard import GroupShard
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


_NAMES_PROTOCOL = 5


def handle(
    services: GroupServices, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    if context.version >= _NAMES_PROTOCOL and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return respond(
        services,
        context,
        request.group_id,
        GroupShard.decide_sync,
        request,
        lambda error: SyncGroupResponse(error_code=error.code),
    )
