"""Envelope: a client's request that another broker forwards to the controller (KIP-590).

Between brokers only. The controller handles it as if the client had sent it directly. The request
is decoded, and its response encoded, in slices of turns, as a client's own request is. Different
from Kafka: there is no principal, because there is no authentication.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import CloseConnection, Encoded
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.files import FileSlice
from millstream.ports.turns import run_steps
from millstream.wire.apis import BY_KEY
from millstream.wire.frames import parse_request_header
from millstream.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from millstream.wire.schema import DecodeError, Struct

if TYPE_CHECKING:
    from millstream.broker.services import EnvelopeServices

_SIZE_BYTES = 4


async def handle(
    services: EnvelopeServices, context: RequestContext, request: EnvelopeRequest
) -> EnvelopeResponse:
    from millstream.broker.net.dispatch import decode_large, encode_steps

    if not services.member.state.active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = memoryview(request.request_data)
    try:
        key, version, correlation_id, client_id, body = parse_request_header(frame)
    except DecodeError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    api = BY_KEY.get(key)
    if api is None or not api.forwarded:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    # The broker that forwards it may be of a newer release.
    if not api.supports(version):
        return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    inner = RequestContext(context.connection, version, correlation_id, client_id)
    try:
        message = await decode_large(
            services.request_memory, api.request_class(), frame, version, body
        )
        # At run time the services are those of all handlers (``broker/parts.py``).
        handler = importlib.import_module(f"millstream.broker.handlers.{api.module}")
        result = handler.handle(services, inner, message)
        response = await result if isinstance(result, Awaitable) else result
    except ApiError as error:
        return EnvelopeResponse(error_code=error.code)
    except DecodeError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    assert isinstance(response, Struct), "forwarded APIs respond with a message"
    # A large request is freed in this turn, its response in a later one.
    del message, result
    try:
        encoded: Encoded = await run_steps(encode_steps(api, inner, response))
    except CloseConnection:
        # The response is too large. That closes the client's connection, not this one.
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    (response_frame,) = encoded.parts
    assert not isinstance(response_frame, FileSlice)
    return EnvelopeResponse(response_data=bytes(memoryview(response_frame)[_SIZE_BYTES:]))
