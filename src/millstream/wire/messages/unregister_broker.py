"""UnregisterBroker (key 64): remove a broker permanently (KIP-500)."""

from __future__ import annotations

from millstream.wire.schema import Struct, int16, int32, string


class UnregisterBrokerRequest(Struct, versions="0", flexible="0+"):
    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
