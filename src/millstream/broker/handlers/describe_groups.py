"""DescribeGroups: state, protocol and members of classic groups, wherever their shard is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import ask, describe_each
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
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
    groups = await describe_each(
        request.groups, partial(_one, services, context), operations=request.include_authorized_operations
    )
    return DescribeGroupsResponse(groups=groups)


async def _one(services: GroupServices, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        part = await ask(
            services, context, group_id, GroupShard.decide_describe, DescribeGroupsRequest(groups=[group_id])
        )
    except ApiError as error:
        return DescribedGroup(error_code=error.code, group_id=group_id)
    return part.groups[0]
