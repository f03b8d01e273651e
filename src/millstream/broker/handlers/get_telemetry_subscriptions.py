"""GetTelemetrySubscriptions: the client metrics to push (KIP-714). This broker requests none.

Different from Kafka: subscriptions are stored as settings, but there is no metrics receiver. Every
client gets the empty subscription, and asks again after five minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from millstream.wire.schema import NULL_UUID

if TYPE_CHECKING:
    from millstream.broker.services import TelemetryServices

# The id of the empty subscription. A client that pushes under another one must ask again.
EMPTY_SUBSCRIPTION = 0
TELEMETRY_MAX_BYTES = 1024 * 1024
_ASK_AGAIN_MS = 300_000
# zstd, lz4, gzip, snappy, in order of preference.
_CODECS = [4, 3, 1, 2]


def handle(
    services: TelemetryServices, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    instance = request.client_instance_id
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=services.new_id() if instance == NULL_UUID else instance,
        subscription_id=EMPTY_SUBSCRIPTION,
        accepted_compression_types=list(_CODECS),
        push_interval_ms=_ASK_AGAIN_MS,
        telemetry_max_bytes=TELEMETRY_MAX_BYTES,
        delta_temporality=True,
        requested_metrics=[],
    )
