"""Envelope (key 58): a client's request, forwarded to the controller (KIP-590)."""

from __future__ import annotations

from millstream.wire.schema import Struct, binary, int16


class EnvelopeRequest(Struct, versions="0", flexible="0+"):
    request_data: bytes = binary("0+")
    request_principal: bytes | None = binary("0+", nullable="0+")
    client_host_address: bytes = binary("0+")


class EnvelopeResponse(Struct, versions="0", flexible="0+"):
    response_data: bytes | None = binary("0+", nullable="0+", default=None)
    error_code: int = int16("0+")
