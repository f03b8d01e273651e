"""DescribeAcls: rejected with SECURITY_DISABLED, as by a Kafka broker without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from millstream.broker.services import NoServices


def handle(
    services: NoServices, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED,
        error_message="No Authorizer is configured on the broker",
    )
