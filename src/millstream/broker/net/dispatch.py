"""From a frame to its handler and back: header, version, decode, call, encode, errors.

A handler module ``broker/handlers/<api>.py`` has ``handle(services, context, request)``, and is
imported when its API is first used. It returns a response message, an awaitable of one, or a Hold.
Produce takes the frame as it is (``handle_frame``). Like Fetch, it returns an encoded response.

A handler whose work grows with its request or with the cluster is a generator: it yields after each
step, and returns the message. It runs in slices of the loop's turns (``ports/turns.py``), as
decoding a large request and encoding a large response do. Usually the first slice is enough, and
the response is ready at once.

An awaitable response holds back the later requests of its connection, unless the API's row in
``wire/apis.py`` says otherwise (``net/connection.py``).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.net.connection import Connection
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import (
    CloseConnection,
    DeferredResponse,
    Encoded,
    FinishedResponse,
    Hold,
    NoResponse,
    Outcome,
    Pipelined,
)
from millstream.broker.requests.forwarding import through_controller
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.turns import Steps, in_slices, run_first_slice, run_steps
from millstream.wire.apis import BY_KEY, Api, Pipelining
from millstream.wire.frames import (
    API_VERSIONS_KEY,
    begin_response,
    finish_response,
    parse_request_header,
)
from millstream.wire.schema import DecodeError, Struct

if TYPE_CHECKING:
    from millstream.broker.net.request_memory import RequestMemory
    from millstream.broker.services import DispatchServices

logger = logging.getLogger("millstream.dispatch")

# Maximum size of a request that is decoded into objects, which are all but Produce: small fields
# take fifty times as much memory as on the wire. Enough for a Fetch of 100,000 partitions.
MAX_DECODED_BYTES = 4 * 1024 * 1024
# Overhead of an Envelope around its request.
_ENVELOPE_BYTES = 1024
# Requests above this size are decoded in slices. A smaller one takes about five milliseconds at
# most.
LARGE_BYTES = 16 * 1024
# Memory that a byte of a large request may take while it is handled.
_MEMORY_PER_BYTE = 20
# Maximum size of an encoded response. Most clients accept no larger one.
MAX_RESPONSE_BYTES = 100 * 1024 * 1024


class _Route(NamedTuple):
    """An API that has been used, with everything its next request needs.

    Counters and timers by API belong here.
    """

    api: Api
    oldest: int
    newest: int
    request_class: type[Struct]
    handle: Callable[..., Any]
    handles_frames: bool
    # For an API that the controller executes: whether this broker handles the request itself.
    is_local: Callable[[Any], bool]
    # The handler of large requests, if that is another function.
    handle_large: Callable[..., Any]


class Dispatcher:
    """Handles the frames of every connection of one broker."""

    def __init__(self, services: DispatchServices) -> None:
        """``services`` are passed to the handlers, which need more of them (``services.py``)."""
        self._services = services
        self._fast_path = services.produce_fast_path
        self._routes: dict[int, _Route] = {}
        self._rate_limited = RateLimitedLog(logger)

    def __call__(self, connection: Connection, frame: memoryview) -> Outcome:
        route, version = None, -1
        try:
            fast_path = self._fast_path
            if connection in fast_path.prefixes and (
                response := fast_path.again(connection, frame)
            ):
                return response
            key, version, correlation_id, client_id, body = parse_request_header(frame)
            route = self._routes.get(key) or self._route(key)
            context = RequestContext(connection, version, correlation_id, client_id)
            if not route.oldest <= version <= route.newest:
                return self._unsupported(route.api, context)
            if route.handles_frames:
                result = route.handle(self._services, context, frame, body)
            else:
                if len(frame) > LARGE_BYTES:
                    return self._large(route, context, frame, body)
                request, _end = route.request_class.decode(frame, version, body)
                if route.api.forwarded:
                    result = self._forward(route, context, frame, request)
                else:
                    result = route.handle(self._services, context, request)
            if type(result) is Encoded:
                return result
            return self._encode(route.api, context, result)
        except CloseConnection:
            raise
        except DecodeError as error:
            raise CloseConnection(f"a request that cannot be decoded: {error}") from None
        # The only place that catches broadly: a bug must not end the broker.
        except Exception as error:
            raise self._failed(route.api.name if route else "a request", version, error) from None

    def _route(self, key: int) -> _Route:
        api = BY_KEY.get(key)
        if api is None:
            raise CloseConnection(f"an unknown API key {key}")
        module = importlib.import_module(f"millstream.broker.handlers.{api.module}")
        handles_frames = hasattr(module, "handle_frame")
        handle = module.handle_frame if handles_frames else module.handle
        newest = api.newest_with(self._services.config.flag)
        is_local = getattr(module, "is_local", lambda request: False)
        large = getattr(module, "handle_large", handle)
        route = _Route(
            api,
            api.min_version,
            newest,
            api.request_class(),
            handle,
            handles_frames,
            is_local,
            large,
        )
        self._routes[key] = route
        return route

    def _forward(
        self, route: _Route, context: RequestContext, frame: memoryview | bytes, request: Struct
    ) -> Any:
        """Let the controller execute the request, unless it concerns this broker."""
        handle_here = partial(route.handle, self._services, context, request)
        if route.is_local(request):
            return handle_here()
        # A copy: the buffer of the frame is reused before this is sent.
        return through_controller(self._services, context, bytes(frame), handle_here)

    def _large(
        self, route: _Route, context: RequestContext, view: memoryview, body: int
    ) -> Outcome:
        """Handle a request that takes long to decode. Later requests of the connection wait."""
        limit = MAX_DECODED_BYTES + (_ENVELOPE_BYTES if route.api.name == "Envelope" else 0)
        if len(view) > limit:
            raise CloseConnection(
                f"{route.api.name} of {len(view)} bytes; at most {limit} are accepted"
            )
        # A copy: the buffer of the frame is reused before this is done.
        frame = bytes(view)
        steps = route.request_class.decode_steps(memoryview(frame), context.version, body)
        decoded = run_first_slice(steps)
        if decoded is not None:
            return self._encode(
                route.api, context, self._handle_large(route, context, frame, decoded[0][0])
            )
        return self._decide(
            route.api, context, Hold(self._decode_and_handle(route, context, frame, steps))
        )

    def _handle_large(
        self, route: _Route, context: RequestContext, frame: bytes, request: Struct
    ) -> Any:
        if route.api.forwarded:
            return self._forward(route, context, frame, request)
        return route.handle_large(self._services, context, request)

    async def _decode_and_handle(
        self, route: _Route, context: RequestContext, frame: bytes, steps: Steps[tuple[Struct, int]]
    ) -> Any:
        """Return the handler's result, or an awaitable of it that later requests may overtake."""
        with self._services.request_memory.holding(_MEMORY_PER_BYTE * len(frame)):
            try:
                request, _end = await in_slices(steps)
            except DecodeError as error:
                raise CloseConnection(f"a request that cannot be decoded: {error}") from None
            result = self._handle_large(route, context, frame, request)
            if isinstance(result, Generator):
                return await in_slices(_response_steps(route.api, context, result))
        if isinstance(result, DeferredResponse):
            return result.guarded_by(partial(self._await, route.api, context))
        return await result.coroutine if isinstance(result, Hold) else result

    def _unsupported(self, api: Api, context: RequestContext) -> Outcome:
        if api.key != API_VERSIONS_KEY:
            raise CloseConnection(f"{api.name} version {context.version}, which is not served")
        from millstream.broker.handlers.api_versions import unsupported

        return encode(api, context._replace(version=0), unsupported())

    def _encode(self, api: Api, context: RequestContext, result: Any) -> Outcome:
        if isinstance(result, Struct):
            return encode(api, context, result)
        if isinstance(result, Encoded | NoResponse):
            return result
        if isinstance(result, DeferredResponse):
            return result.guarded_by(partial(self._await, api, context))
        if isinstance(result, Hold):
            return self._decide(api, context, result)
        if isinstance(result, Generator):
            steps = _response_steps(api, context, result)
            finished = run_first_slice(steps)
            # Undecided until its last slice: later requests of the connection wait.
            return (
                finished[0] if finished is not None else self._await(api, context, in_slices(steps))
            )
        return self._pending(api, context, result)

    def _pending(
        self, api: Api, context: RequestContext, result: Awaitable[Any]
    ) -> Awaitable[FinishedResponse] | Pipelined:
        """Return the pending response of a decided request, with the requests that may overtake."""
        response = self._await(api, context, result)
        if api.pipelining is Pipelining.NONE:
            return response
        return Pipelined(response, api.key if api.pipelining is Pipelining.SAME_API else None)

    async def _await(
        self, api: Api, context: RequestContext, result: Awaitable[Any]
    ) -> FinishedResponse:
        try:
            response = await result
            if not isinstance(response, Struct):
                return response  # type: ignore[no-any-return]
            return await run_steps(encode_steps(api, context, response))
        except CloseConnection as error:
            self._rate_limited.log(logging.INFO, "closing", f"closing connection: {error}")
        except Exception as error:
            self._failed(api.name, context.version, error)
        context.connection.close()
        return NoResponse()

    async def _decide(
        self, api: Api, context: RequestContext, hold: Hold
    ) -> FinishedResponse | Pipelined:
        """Return the response, or its pending rest once the request is decided."""
        response: Any = await self._await(api, context, hold.coroutine)
        if isinstance(response, Encoded | NoResponse):
            return response
        pending = self._pending(api, context, response)
        return pending if isinstance(pending, Pipelined) else await pending

    def _failed(self, name: str, version: int, error: Exception) -> CloseConnection:
        logger.error("%s v%d failed unexpectedly", name, version, exc_info=error)
        return CloseConnection(f"{name} v{version} failed unexpectedly")


async def decode_large(
    memory: RequestMemory, cls: type[Struct], frame: memoryview, version: int, body: int
) -> Struct:
    """Decode a request inside another one, in slices; raise DecodeError if it is malformed."""
    steps = cls.decode_steps(frame, version, body)
    if len(frame) <= LARGE_BYTES:
        return (await run_steps(steps))[0]
    with memory.holding(_MEMORY_PER_BYTE * len(frame)):
        return (await run_steps(steps))[0]


def _response_steps(api: Api, context: RequestContext, work: Steps[Struct]) -> Steps[Encoded]:
    """Run the steps of a handler, then encode its response in steps."""
    response = yield from work
    return (yield from encode_steps(api, context, response))


def encode_steps(api: Api, context: RequestContext, response: Struct) -> Steps[Encoded]:
    """Encode a response in steps. One above the maximum size closes the connection."""
    out = begin_response(api.key, context.version, context.correlation_id)
    for step in response.encode_steps(context.version, out):
        if len(out) > MAX_RESPONSE_BYTES:
            raise CloseConnection(
                f"the response to {api.name} has more than {MAX_RESPONSE_BYTES} bytes; request less at a time"
            )
        yield step
    return Encoded([finish_response(out)])


def encode(api: Api, context: RequestContext, response: Struct) -> Encoded:
    """Encode a response message with its header."""
    out = begin_response(api.key, context.version, context.correlation_id)
    response.encode(context.version, out)
    return Encoded([finish_response(out)])
