"""PushTelemetry (key 72): client metrics, pushed (KIP-714)."""

from __future__ import annotations

from millstream.wire.schema import Struct, binary, boolean, int8, int16, int32, uuid


class PushTelemetryRequest(Struct, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: bytes = binary("0+")


class PushTelemetryResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
