"""AlterClientQuotas: rejected with UNSUPPORTED_VERSION.

Different from Kafka: there are no client quotas. A quota that is stored but not enforced would
protect nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlterationResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import NoServices


def handle(
    services: NoServices, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    code = ErrorCode.UNSUPPORTED_VERSION
    message = "Client quotas are not enforced by this broker, so none can be set."
    return AlterClientQuotasResponse(
        entries=[
            QuotaAlterationResult(error_code=code, error_message=message, entity=alteration.entity)
            for alteration in request.entries
        ]
    )
