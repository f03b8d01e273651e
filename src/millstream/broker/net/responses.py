"""What a handler may return, besides a response message or an awaitable of one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol

from millstream.ports.files import FileSlice
from millstream.wire.schema import Struct

Part = bytes | bytearray | memoryview | FileSlice


class NoResponse:
    """Nothing is sent back (Produce with acks=0)."""


class CloseConnection(Exception):
    """The request cannot be answered in its protocol: end the connection. The message goes to the log."""


class Encoded:
    """A response that the handler has encoded itself, header included; file slices are read as the socket drains."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class Hold:
    """The request is not decided before the coroutine ends, so later requests of the connection wait.

    For the handlers of APIs whose decided requests later ones may pass (``Pipelining`` in
    ``wire/apis.py``): a produce that appends only after an await, for example. The coroutine gives
    the answer, or an awaitable of it once the request is decided. Any other API needs no Hold: its
    awaitable answers hold back later requests anyway.
    """

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Answer]) -> None:
        self.coroutine = coroutine


class Pipelined:
    """An answer to come of a request that is decided: later requests of the connection are handled
    before it; with ``passed_by`` only those of the API with this key."""

    __slots__ = ("answer", "passed_by")

    def __init__(self, answer: Awaitable[Encoded | NoResponse], passed_by: int | None = None) -> None:
        self.answer = answer
        self.passed_by = passed_by


class Later:
    """An awaitable of an answer for which the connection needs no task, because it comes by a call: for what waits with every request, which
    is fetches. One of ``deliver`` and ``become`` is called once; ``abandon`` is for when nobody waits for the answer any more."""

    __slots__ = ("_guard", "_slot", "abandon")

    def __init__(self, abandon: Callable[[], None]) -> None:
        self.abandon = abandon
        self._guard: Callable[[Awaitable[Any]], Awaitable[Encoded | NoResponse]]
        self._slot: Slot

    def guarded_by(self, guard: Callable[[Awaitable[Any]], Awaitable[Encoded | NoResponse]]) -> Later:
        """What sees to the errors of an answer that needs a task after all."""
        self._guard = guard
        return self

    def goes_to(self, slot: Slot) -> None:
        self._slot = slot

    def deliver(self, answer: Encoded) -> None:
        self._slot.deliver(self, answer)

    def become(self, answer: Awaitable[Any]) -> None:
        """There is more to wait for: the disk, for example."""
        self._slot.become(self, self._guard(answer))

    def __await__(self) -> Generator[Any, Any, Encoded | NoResponse]:
        return self._wait().__await__()

    async def _wait(self) -> Encoded | NoResponse:
        came: asyncio.Future[Encoded | Awaitable[Encoded | NoResponse]] = (
            asyncio.get_running_loop().create_future()
        )
        self._slot = _Awaited(came)
        try:
            answer = await came
        finally:
            self.abandon()
        return answer if isinstance(answer, Encoded) else await answer


class Slot(Protocol):
    """Where an answer goes: its place among those of its connection."""

    def deliver(self, later: Later, answer: Encoded) -> None: ...

    def become(self, later: Later, answer: Awaitable[Encoded | NoResponse]) -> None: ...


class _Awaited:
    """A place outside of the connection's queue."""

    def __init__(self, came: asyncio.Future[Encoded | Awaitable[Encoded | NoResponse]]) -> None:
        self._came = came

    def deliver(self, later: Later, answer: Encoded) -> None:
        if not self._came.done():
            self._came.set_result(answer)

    def become(self, later: Later, answer: Awaitable[Encoded | NoResponse]) -> None:
        if not self._came.done():
            self._came.set_result(answer)


Response = Struct | Encoded | NoResponse
Answer = Response | Awaitable[Response]
