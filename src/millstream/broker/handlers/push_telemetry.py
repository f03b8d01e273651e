"""PushTelemetry: accepted and dropped under the empty subscription; otherwise errors as in KIP-714.

See ``get_telemetry_subscriptions.py``: no client is asked for metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers.get_telemetry_subscriptions import (
    EMPTY_SUBSCRIPTION,
    TELEMETRY_MAX_BYTES,
)
from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from millstream.wire.schema import NULL_UUID

if TYPE_CHECKING:
    from millstream.broker.services import NoServices


def handle(
    services: NoServices, context: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    if request.client_instance_id == NULL_UUID:
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.subscription_id != EMPTY_SUBSCRIPTION:
        return PushTelemetryResponse(error_code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
    if not 0 <= request.compression_type <= 4:
        return PushTelemetryResponse(error_code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if len(request.metrics) > TELEMETRY_MAX_BYTES:
        return PushTelemetryResponse(error_code=ErrorCode.TELEMETRY_TOO_LARGE)
    return PushTelemetryResponse()
