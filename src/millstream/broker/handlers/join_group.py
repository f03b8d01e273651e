"""JoinGroup: join a classic group. The response comes when the next generation has its members.

* v1: the rebalance timeout. In v0 the session timeout serves for both.
* v4: a new member first gets its id with MEMBER_ID_REQUIRED, and joins with it (KIP-394).
* v5: static members (KIP-345).
* v7: the response names protocol type and protocol (KIP-559).
* v9: a static leader that returns may skip the assignment. Older leaders get the id of the old
  leader instead, so that they do not assign.

Later requests of the connection may overtake it: it is decided at once, and waits for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import respond
from millstream.groups.shard import GroupShard
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


def handle(
    services: GroupServices, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    return respond(
        services,
        context,
        request.group_id,
        GroupShard.decide_join,
        request,
        lambda error: JoinGroupResponse(error_code=error.code, member_id=request.member_id),
    )
