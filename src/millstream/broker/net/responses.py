"""The results that a handler may return, besides a response message or an awaitable of one.

``Outcome`` is such a result as the connection gets it from the dispatcher: encoded, or still to
come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol

from millstream.ports.files import FileSlice
from millstream.wire.schema import Struct

# A piece of an encoded response. File slices are read as the socket drains.
ResponsePart = bytes | bytearray | memoryview | FileSlice


class NoResponse:
    """Nothing is sent back (Produce with acks=0)."""


class CloseConnection(Exception):
    """The request cannot be answered within its protocol: close the connection.

    The message goes to the log.
    """


class Encoded:
    """A response as it is sent, header included."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[ResponsePart]) -> None:
        self.parts = parts


FinishedResponse = Encoded | NoResponse


class Hold:
    """The request is undecided until the coroutine ends, so later requests of the connection wait.

    For handlers of APIs that allow overtaking (``Pipelining`` in ``wire/apis.py``): a produce that
    appends only after an await, for example. The coroutine returns the response, or an awaitable of
    it once the request is decided. Handlers of other APIs need no Hold, because their awaitable
    responses hold back later requests anyway.
    """

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, HandlerResult]) -> None:
        self.coroutine = coroutine


class Pipelined:
    """The pending response of a decided request: later requests need not wait for it.

    With ``passed_by`` only requests of the API with this key may overtake.
    """

    __slots__ = ("passed_by", "response")

    def __init__(self, response: Awaitable[FinishedResponse], passed_by: int | None = None) -> None:
        self.response = response
        self.passed_by = passed_by


class DeferredResponse:
    """A pending response that is delivered by a call, so that the connection needs no task for it.

    Delayed fetches use it, because nearly every fetch of a consumer at the end of the log waits.
    Either ``deliver`` or ``become`` is called, once. ``abandon`` is called if the connection is
    closed first.
    """

    __slots__ = ("_guard", "_slot", "abandon")

    def __init__(self, abandon: Callable[[], None]) -> None:
        self.abandon = abandon
        self._guard: Callable[[Awaitable[Any]], Awaitable[FinishedResponse]]
        self._slot: ResponseSlot

    def guarded_by(
        self, guard: Callable[[Awaitable[Any]], Awaitable[FinishedResponse]]
    ) -> DeferredResponse:
        """Set the wrapper that handles the errors of the awaitable given to ``become``."""
        self._guard = guard
        return self

    def goes_to(self, slot: ResponseSlot) -> None:
        self._slot = slot

    def deliver(self, response: Encoded) -> None:
        self._slot.deliver(self, response)

    def become(self, response: Awaitable[Any]) -> None:
        """Replace this by an awaitable: the response needs a disk read, for example."""
        self._slot.become(self, self._guard(response))

    def __await__(self) -> Generator[Any, Any, FinishedResponse]:
        return self._wait().__await__()

    async def _wait(self) -> FinishedResponse:
        delivered: asyncio.Future[Encoded | Awaitable[FinishedResponse]] = (
            asyncio.get_running_loop().create_future()
        )
        self._slot = _Awaited(delivered)
        try:
            response = await delivered
        finally:
            self.abandon()
        return response if isinstance(response, Encoded) else await response


class ResponseSlot(Protocol):
    """The destination of a deferred response: its place among the responses of a connection."""

    def deliver(self, deferred: DeferredResponse, response: Encoded) -> None: ...

    def become(self, deferred: DeferredResponse, response: Awaitable[FinishedResponse]) -> None: ...


class _Awaited:
    """The destination of a deferred response that is awaited, outside of any connection's queue."""

    def __init__(self, delivered: asyncio.Future[Encoded | Awaitable[FinishedResponse]]) -> None:
        self._delivered = delivered

    def deliver(self, deferred: DeferredResponse, response: Encoded) -> None:
        if not self._delivered.done():
            self._delivered.set_result(response)

    def become(self, deferred: DeferredResponse, response: Awaitable[FinishedResponse]) -> None:
        if not self._delivered.done():
            self._delivered.set_result(response)


Response = Struct | FinishedResponse
HandlerResult = Response | Awaitable[Response]
# A plain awaitable holds back later requests until it is done. It may also return a Pipelined: then
# the request is decided, and its response is still pending.
Outcome = FinishedResponse | DeferredResponse | Pipelined | Awaitable[FinishedResponse | Pipelined]
