"""JoinGroup: the answer comes when the group's next generation has its members."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import answer
from millstream.groups.shard import GroupShard
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


def handle(
    services: GroupServices, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Decided at once: later requests of the connection are handled while the group gathers."""
    return answer(
        services,
        context,
        request.group_id,
        GroupShard.decide_join,
        request,
        lambda error: JoinGroupResponse(error_code=error.code, member_id=request.member_id),
    )
