"""GetTelemetrySubscriptions (key 71): the client metrics that clients should push (KIP-714)."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, boolean, int16, int32, uuid


class GetTelemetrySubscriptionsRequest(Struct, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid("0+")


class GetTelemetrySubscriptionsResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    accepted_compression_types: list[int] = array("int8", "0+")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = array("string", "0+")
