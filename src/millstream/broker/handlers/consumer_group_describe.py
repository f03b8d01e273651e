"""ConsumerGroupDescribe: consumer groups with their members and assignments (KIP-848).

* v1: the type of each member, classic or consumer, which matters during a migration of the group.

Needs ``group.version`` 1. Otherwise every group gets UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import call_group, check_consumer_protocol, describe_each
from millstream.core.errors import ApiError
from millstream.groups.shard import GroupShard
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConsumerGroupServices


async def handle(
    services: ConsumerGroupServices, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = await describe_each(
        request.group_ids,
        partial(_describe, services, context),
        operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(
    services: ConsumerGroupServices, context: RequestContext, group_id: str
) -> DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    try:
        check_consumer_protocol(services)
        response = await call_group(
            services, context, group_id, GroupShard.decide_consumer_describe, request
        )
    except ApiError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
    return response.groups[0]
