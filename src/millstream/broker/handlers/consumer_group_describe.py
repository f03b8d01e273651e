"""ConsumerGroupDescribe: consumer groups with their members and assignments (KIP-848)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import ask, check_consumer_protocol, describe_each
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
        request.group_ids, partial(_one, services, context), operations=request.include_authorized_operations
    )
    return ConsumerGroupDescribeResponse(groups=groups)


async def _one(services: ConsumerGroupServices, context: RequestContext, group_id: str) -> DescribedGroup:
    asked = ConsumerGroupDescribeRequest(group_ids=[group_id])
    try:
        check_consumer_protocol(services)
        part = await ask(services, context, group_id, GroupShard.decide_consumer_describe, asked)
    except ApiError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
    return part.groups[0]
