"""DescribeGroups: state, protocol and members of classic groups.

* v3: authorized operations on request.
* v4: the instance ids of static members.
* v6: an unknown group gets GROUP_ID_NOT_FOUND with a message (KIP-1043). Before, it is Dead without
  an error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import call_group, describe_each
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
        request.groups,
        partial(_describe, services, context),
        operations=request.include_authorized_operations,
    )
    return DescribeGroupsResponse(groups=groups)


async def _describe(
    services: GroupServices, context: RequestContext, group_id: str
) -> DescribedGroup:
    try:
        response = await call_group(
            services,
            context,
            group_id,
            GroupShard.decide_describe,
            DescribeGroupsRequest(groups=[group_id]),
        )
    except ApiError as error:
        return DescribedGroup(error_code=error.code, group_id=group_id)
    return response.groups[0]
