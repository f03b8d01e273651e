"""Requests that only the controller can carry out: done here when this broker is it, else passed on in an Envelope (KIP-590).

Clients may ask any broker. While there is no controller, or the one known has just been replaced, the request waits and is tried again: whoever
asked learns of a new controller by nothing but a little delay. A request whose answer was lost is sent again, as a client would.
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
    services: MemberServices, context: RequestContext, frame: bytes, here: Callable[[], Any]
) -> Any:
    """The answer of the controller, which ``here`` gives where it is this broker. One that was replaced before it was done raises
    NOT_CONTROLLER."""
    deadline = asyncio.get_running_loop().time() + services.member.request_timeout_s
    await services.auto_creation.settled(context.connection, services.member.request_timeout_s)
    while True:
        try:
            if services.member.state.active:
                result = here()
                return await result if isinstance(result, Awaitable) else result
            return await _pass_on(services, context, frame)
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
    """The answers to the resources of a request, in their order. This broker gives those to its own, before the controller is asked for the
    others: it may have to be asked more than once."""
    own = type(request)(
        resources=[one for one in request.resources if is_local(one)], validate_only=request.validate_only
    )
    others = type(request)(
        resources=[one for one in request.resources if not is_local(one)], validate_only=request.validate_only
    )
    from_here = iter((await handle(own)).responses)
    from_there = iter((await _ask_controller(services, context, others, handle)).responses)
    return [next(from_here if is_local(one) else from_there) for one in request.resources]


async def _ask_controller(
    services: MemberServices,
    context: RequestContext,
    request: Struct,
    handle: Callable[[Any], Awaitable[Any]],
) -> Any:
    """For a request that no client sent in this form."""
    api = api_of(request)
    body = await run_steps(request.encode_steps(context.version, bytearray()))
    frame = request_frame(api.key, context.version, context.correlation_id, context.client_id, body)
    answer = await through_controller(services, context, frame, lambda: handle(request))
    if not isinstance(answer, Encoded):
        return answer
    data = memoryview(b"".join(answer.parts))  # type: ignore[arg-type]
    begin = len(begin_response(api.key, context.version, context.correlation_id))
    return (await run_steps(api.response_class().decode_steps(data, context.version, begin)))[0]


async def _pass_on(services: MemberServices, context: RequestContext, frame: bytes) -> Encoded:
    host, port = await services.member.controller_address()
    request = EnvelopeRequest(
        request_data=frame,
        request_principal=None,
        client_host_address=context.connection.stream.peer_host.encode(),
    )
    answer: EnvelopeResponse = await services.member.peers.ask(
        FORWARDED, host, port, request, timeout_s=services.member.request_timeout_s
    )
    if answer.error_code == ErrorCode.NOT_CONTROLLER:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    if answer.error_code:
        raise CloseConnection(f"the controller refuses it: {ErrorCode.of(answer.error_code).name}")
    data = bytes(answer.response_data or b"")
    return Encoded([len(data).to_bytes(4, "big") + data])
