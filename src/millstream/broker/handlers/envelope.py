"""Envelope: a request that another broker passes on; answered by the controller as if the client had asked it.

The request within is decoded, and its answer encoded, in slices of turns, as a client's own request is.
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
    from millstream.broker.app import Broker

_SIZE_BYTES = 4


async def handle(broker: Broker, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    from millstream.broker.net.dispatch import decode_large, encode_steps

    if not broker.member.state.active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = memoryview(request.request_data)
    try:
        key, version, correlation_id, client_id, body = parse_request_header(frame)
    except DecodeError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    api = BY_KEY.get(key)
    if api is None or not api.forwarded:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not api.supports(version):  # the broker that the client asked is of a newer release
        return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    inner = RequestContext(context.connection, version, correlation_id, client_id)
    try:
        message = await decode_large(broker, api.request_class(), frame, version, body)
        handler = importlib.import_module(f"millstream.broker.handlers.{api.module}")
        result = handler.handle(broker, inner, message)
        answer = await result if isinstance(result, Awaitable) else result
    except ApiError as error:
        return EnvelopeResponse(error_code=error.code)
    except DecodeError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    assert isinstance(answer, Struct), "what is forwarded is answered with a message"
    try:
        encoded: Encoded = await run_steps(encode_steps(api, inner, answer))
    except CloseConnection:
        # An answer beyond all bounds: the client's connection is closed for it, not that of its broker.
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    (whole,) = encoded.parts
    assert not isinstance(whole, FileSlice)
    return EnvelopeResponse(response_data=bytes(memoryview(whole)[_SIZE_BYTES:]))
