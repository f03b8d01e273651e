"""DescribeClientQuotas: always empty, because no quota can be set (``alter_client_quotas.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import NoServices


_ENTITY_TYPES = ("user", "client-id", "ip")


def handle(
    services: NoServices, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    for component in request.components:
        if component.entity_type not in _ENTITY_TYPES:
            return DescribeClientQuotasResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message=f"Unsupported entity type {component.entity_type}",
                entries=None,
            )
    return DescribeClientQuotasResponse(error_message="", entries=[])
