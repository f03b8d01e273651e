"""AlterClientQuotas: rejected with UNSUPPORTED_VERSION.

Different from Kafka: there are no client quotas. A quota that is stored but not enforced would
protect nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.ports.turns import Steps, in_slices
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlterationResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import NoServices


async def handle(
    services: NoServices, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=await in_slices(_rejections(request)))


def _rejections(request: AlterClientQuotasRequest) -> Steps[list[QuotaAlterationResult]]:
    message = "Client quotas are not enforced by this broker, so none can be set."
    results = []
    for alteration in request.entries:
        yield
        result = QuotaAlterationResult(error_code=ErrorCode.UNSUPPORTED_VERSION)
        result.error_message = message
        result.entity = alteration.entity
        results.append(result)
    return results
