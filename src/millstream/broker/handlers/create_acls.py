"""CreateAcls: rejected with SECURITY_DISABLED, as by a Kafka broker without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import NoServices


def handle(
    services: NoServices, context: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse:
    code, message = ErrorCode.SECURITY_DISABLED, "No Authorizer is configured."
    rejection = AclCreationResult(error_code=code, error_message=message)
    return CreateAclsResponse(results=[rejection] * len(request.creations))
