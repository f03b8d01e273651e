"""Requests for the controller: handled here if this broker is it, else forwarded in an Envelope
(KIP-590).

Clients may send them to any broker. While there is no controller, or the known one was just
replaced, the request waits and is retried: the client only sees a short delay. A request whose
response was lost is sent again, as a client would do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import CloseConnection, Encoded
from millstream.cluster.membership.member import FORWARDED
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import run_steps
from millstream.wire.apis import api_of
from millstream.wire.frames import begin_response, request_frame
from millstream.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from millstream.wire.schema import Struct

if TYPE_CHECKING:
    from millstream.broker.services import MemberServices

_RETRY_S = 0.1


async def through_controller(
    services: MemberServices, context: RequestContext, frame: bytes, handle_here: Callable[[], Any]
) -> Any:
    """Return the response of the controller; ``handle_here`` gives it if this broker is it.

    ``handle_here`` raises NOT_CONTROLLER if the broker was replaced before it was done.
    """
    deadline = asyncio.get_running_loop().time() + services.member.request_timeout_s
    await services.auto_creation.settled(context.connection, services.member.request_timeout_s)
    while True:
        try:
            if services.member.state.active:
                result = handle_here()
                return await result if isinstance(result, Awaitable) else result
            return await _forward(services, context, frame)
        except ApiError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
        except OSError:
            pass
        if asyncio.get_running_loop().time() > deadline:
            raise CloseConnection("no controller could be reached")
        await asyncio.sleep(_RETRY_S)


async def in_two_parts(
    services: MemberServices,
    context: RequestContext,
    request: Any,
    is_local: Callable[[Any], bool],
    handle: Callable[[Any], Awaitable[Any]],
) -> list[Any]:
    """Return the responses for the resources of a request, in order.

    This broker handles its own resources first, because the request to the controller may have to
    be retried.
    """
    own = type(request)(
        resources=[r for r in request.resources if is_local(r)], validate_only=request.validate_only
    )
    others = type(request)(
        resources=[r for r in request.resources if not is_local(r)],
        validate_only=request.validate_only,
    )
    local = iter((await handle(own)).responses)
    remote = iter((await _call_controller(services, context, others, handle)).responses)
    return [next(local if is_local(resource) else remote) for resource in request.resources]


async def _call_controller(
    services: MemberServices,
    context: RequestContext,
    request: Struct,
    handle: Callable[[Any], Awaitable[Any]],
) -> Any:
    """Send the controller a request that no client sent in this form."""
    api = api_of(request)
    body = await run_steps(request.encode_steps(context.version, bytearray()))
    frame = request_frame(api.key, context.version, context.correlation_id, context.client_id, body)
    response = await through_controller(services, context, frame, lambda: handle(request))
    if not isinstance(response, Encoded):
        return response
    data = memoryview(b"".join(response.parts))  # type: ignore[arg-type]
    body_at = len(begin_response(api.key, context.version, context.correlation_id))
    return (await run_steps(api.response_class().decode_steps(data, context.version, body_at)))[0]


async def _forward(services: MemberServices, context: RequestContext, frame: bytes) -> Encoded:
    host, port = await services.member.controller_address()
    request = EnvelopeRequest(
        request_data=frame,
        request_principal=None,
        client_host_address=context.connection.stream.peer_host.encode(),
    )
    response: EnvelopeResponse = await services.member.peers.ask(
        FORWARDED, host, port, request, timeout_s=services.member.request_timeout_s
    )
    if response.error_code == ErrorCode.NOT_CONTROLLER:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    if response.error_code:
        raise CloseConnection(
            f"the controller rejects it: {ErrorCode.of(response.error_code).name}"
        )
    data = bytes(response.response_data or b"")
    return Encoded([len(data).to_bytes(4, "big") + data])
