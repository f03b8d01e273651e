"""DescribeGroups: state, protocol and members of classic groups, wherever their shard is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.authorized import GROUP_OPERATIONS
from millstream.broker.group_requests import ask
from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.ports.turns import once_each
from millstream.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices


async def handle(
    services: GroupServices, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    async def describe(group_id: str) -> DescribedGroup:
        group = await _one(services, context, group_id)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
        return group

    return DescribeGroupsResponse(groups=await once_each(request.groups, describe))


async def _one(services: GroupServices, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        part = await ask(
            services, context, group_id, GroupShard.decide_describe, DescribeGroupsRequest(groups=[group_id])
        )
    except ApiError as error:
        return DescribedGroup(error_code=error.code, group_id=group_id)
    return part.groups[0]
