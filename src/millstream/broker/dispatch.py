"""From a frame to its handler and back: header, version, decode, call, encode, errors.

A handler module ``broker/handlers/<api>.py`` has ``handle(broker, context, request)`` and is imported when its API is
first used. It returns a response message, an awaitable of one, or a Hold. Produce takes the frame as it is
(``handle_frame``) and, like Fetch, returns what it encoded itself.

An awaitable answer holds back the later requests of its connection, unless the API's row in
``wire/apis.py`` says otherwise.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker import usual_produce
from millstream.broker.connection import Answer, Connection, Outcome
from millstream.broker.context import RequestContext
from millstream.broker.forwarding import through_controller
from millstream.broker.responses import CloseConnection, Encoded, Hold, Later, NoResponse, Pipelined
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.wire.apis import BY_KEY, Api, Pipelining
from millstream.wire.frames import API_VERSIONS_KEY, begin_response, finish_response, parse_request_header
from millstream.wire.schema import DecodeError, Struct

if TYPE_CHECKING:
    from millstream.broker.app import Broker

log = logging.getLogger("millstream.dispatch")

# The largest request that is decoded into objects, which is every one but Produce: tiny fields take fifty times as much
# memory as they do on the wire, and all of them are handled in one go. Enough for a Fetch of 100,000 partitions.
_MOST_BYTES = 4 * 1024 * 1024


class _Route(NamedTuple):
    """An API that has been used: everything its next request needs."""

    api: Api
    oldest: int
    newest: int
    request_class: type[Struct]
    handle: Callable[..., Any]
    handles_frames: bool
    # Of an API that the controller carries out: whether this request concerns the broker that was asked all the same.
    is_local: Callable[[Any], bool]


class Dispatcher:
    """Handles the frames of every connection of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[int, _Route] = {}
        self._rate_limited = RateLimitedLog(log)

    def __call__(self, connection: Connection, frame: memoryview) -> Outcome:
        route, version = None, -1
        try:
            if connection.usual_until and (answer := usual_produce.again(self._broker, connection, frame)):
                return answer
            key, version, correlation_id, client_id, body = parse_request_header(frame)
            route = self._routes.get(key) or self._route(key)
            context = RequestContext(connection, version, correlation_id, client_id)
            if not route.oldest <= version <= route.newest:
                return self._unsupported(route.api, context)
            if route.handles_frames:
                result = route.handle(self._broker, context, frame, body)
            else:
                if len(frame) > _MOST_BYTES:
                    raise CloseConnection(
                        f"{route.api.name} of {len(frame)} bytes; at most {_MOST_BYTES} are read"
                    )
                request, _end = route.request_class.decode(frame, version, body)
                if route.api.forwarded and not route.is_local(request):
                    here = partial(route.handle, self._broker, context, request)
                    # A copy: the frame is in a buffer that is used again before this is sent.
                    result = through_controller(self._broker, context, bytes(frame), here)
                else:
                    result = route.handle(self._broker, context, request)
            if type(result) is Encoded:
                return result
            return self._encode(route.api, context, result)
        except CloseConnection:
            raise
        except DecodeError as error:
            raise CloseConnection(f"a request that cannot be read: {error}") from None
        except Exception as error:  # the one place that catches broadly: a bug must not end the broker
            raise self._failed(route.api.name if route else "a request", version, error) from None

    def _route(self, key: int) -> _Route:
        api = BY_KEY.get(key)
        if api is None:
            raise CloseConnection(f"an unknown API key {key}")
        module = importlib.import_module(f"millstream.broker.handlers.{api.module}")
        in_frames = hasattr(module, "handle_frame")
        handle = module.handle_frame if in_frames else module.handle
        newest = api.newest_with(self._broker.config.flag)
        is_local = getattr(module, "is_local", lambda request: False)
        route = _Route(api, api.min_version, newest, api.request_class(), handle, in_frames, is_local)
        self._routes[key] = route
        return route

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
        if isinstance(result, Later):
            return result.guarded_by(partial(self._later, api, context))
        if isinstance(result, Hold):
            return self._decide(api, context, result)
        return self._pending(api, context, result)

    def _pending(
        self, api: Api, context: RequestContext, result: Awaitable[Any]
    ) -> Awaitable[Answer] | Pipelined:
        """The answer to come of a request that is as far as it holds back later requests."""
        answer = self._later(api, context, result)
        if api.pipelining is Pipelining.NONE:
            return answer
        return Pipelined(answer, api.key if api.pipelining is Pipelining.SAME_API else None)

    async def _later(self, api: Api, context: RequestContext, result: Awaitable[Any]) -> Answer:
        try:
            answer = await result
            return encode(api, context, answer) if isinstance(answer, Struct) else answer
        except CloseConnection as error:
            self._rate_limited.log(logging.INFO, "closing", f"closing connection: {error}")
        except Exception as error:
            self._failed(api.name, context.version, error)
        context.connection.close()
        return NoResponse()

    async def _decide(self, api: Api, context: RequestContext, hold: Hold) -> Answer | Pipelined:
        """The answer, or what is left to wait for once the request is decided."""
        answer: Any = await self._later(api, context, hold.coroutine)
        if isinstance(answer, Encoded | NoResponse):
            return answer
        pending = self._pending(api, context, answer)
        return pending if isinstance(pending, Pipelined) else await pending

    def _failed(self, what: str, version: int, error: Exception) -> CloseConnection:
        log.error("%s v%d failed unexpectedly", what, version, exc_info=error)
        return CloseConnection(f"{what} v{version} failed unexpectedly")


def encode(api: Api, context: RequestContext, response: Struct) -> Encoded:
    """A response message as bytes, header included."""
    out = begin_response(api.key, context.version, context.correlation_id)
    response.encode(context.version, out)
    return Encoded([finish_response(out)])
