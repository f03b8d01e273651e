"""The responses of a connection in order, and whether later requests must wait for them.

The essay in ``net/connection.py`` explains the rules of this order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import Any

from millstream.broker.net.connection_control import UNSENT_LIMIT, ConnectionControl
from millstream.broker.net.responses import (
    DeferredResponse,
    Encoded,
    FinishedResponse,
    NoResponse,
    Outcome,
    Pipelined,
    ResponsePart,
)
from millstream.broker.net.send_queue import SendQueue
from millstream.ports.files import FileSlice
from millstream.ports.turns import Steps, in_slices, run_first_slice

logger = logging.getLogger("millstream.connection")


class Slot:
    """The place of a response in the queue."""

    __slots__ = ("_queue", "delayed", "parts")

    def __init__(self, queue: ResponseQueue) -> None:
        self._queue = queue
        # Whether requests of other APIs wait for this response.
        self.delayed = False
        # None until the response is ready.
        self.parts: list[ResponsePart] | None = None

    def deliver(self, deferred: DeferredResponse, response: Encoded) -> None:
        self._queue.deliver(self, deferred, response)

    def become(self, deferred: DeferredResponse, response: Awaitable[FinishedResponse]) -> None:
        self._queue.become(self, deferred, response)


class ResponseQueue:
    """Slots for responses that cannot be sent yet, with the tasks that will give them.

    It also knows whether later requests must wait:

    * ``held``: a request is undecided, so no later request may be handled.
    * ``delayed``: the number of appended produces that wait for their acknowledgement. Only
      requests of the same API (``delayed_key``) may be handled.
    * ``behind_delayed``: a request of another API is next and waits for the delayed produces.
    """

    __slots__ = (
        "_closed",
        "_connection",
        "_deferred",
        "_loop",
        "_sending",
        "behind_delayed",
        "delayed",
        "delayed_key",
        "held",
        "slots",
        "tasks",
        "waiting_bytes",
    )

    def __init__(
        self, sending: SendQueue, connection: ConnectionControl, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sending = sending
        self._connection = connection
        self._loop = loop
        self.slots: deque[Slot] = deque()
        self.tasks: set[asyncio.Future[Any]] = set()
        self._deferred: set[DeferredResponse] = set()
        # Bytes in memory of finished responses behind an unfinished one.
        self.waiting_bytes = 0
        self.held = False
        self.delayed, self.delayed_key, self.behind_delayed = 0, -1, False
        self._closed = False

    def add(self, outcome: Outcome) -> None:
        """Queue the response of the next request, or keep its place until it is ready."""
        if isinstance(outcome, Encoded):
            if self.slots:
                self._fill(self._new_slot(), outcome.parts)
            else:
                self._sending.add(outcome.parts)
        elif isinstance(outcome, DeferredResponse):
            self._deferred.add(outcome)
            outcome.goes_to(self._new_slot())
        elif isinstance(outcome, NoResponse):
            pass
        elif isinstance(outcome, Pipelined):
            slot = self._new_slot()
            self._await(slot, self._pipelined(slot, outcome))
        else:
            self.held = True
            slot = self._new_slot()
            self._await(slot, self._hold(slot, outcome))

    def move_ready(self) -> None:
        """Move the responses that are ready and next in order to the send queue."""
        slots, sending = self.slots, self._sending
        while slots and (parts := slots[0].parts) is not None and sending.unsent <= UNSENT_LIMIT:
            slots.popleft()
            self.waiting_bytes -= _bytes_in_memory(parts)
            sending.add(parts)

    def _new_slot(self) -> Slot:
        slot = Slot(self)
        self.slots.append(slot)
        return slot

    def _fill(self, slot: Slot, parts: list[ResponsePart]) -> None:
        slot.parts = parts
        self.waiting_bytes += _bytes_in_memory(parts)

    # ---- deferred responses ----

    def deliver(self, slot: Slot, deferred: DeferredResponse, response: Encoded) -> None:
        if self._closed:
            return  # it is abandoned in one of the next turns
        self._deferred.discard(deferred)
        if not self._sending.parts and self.slots[0] is slot:
            self.slots.popleft()
            self._sending.add(response.parts)
        else:
            self._fill(slot, response.parts)
        self._connection.advance()

    def become(
        self, slot: Slot, deferred: DeferredResponse, response: Awaitable[FinishedResponse]
    ) -> None:
        if not self._closed:
            self._deferred.discard(deferred)
            self._await(slot, response)

    # ---- awaited responses ----

    def _await(self, slot: Slot, response: Awaitable[FinishedResponse]) -> None:
        future = asyncio.ensure_future(response)
        self.tasks.add(future)
        future.add_done_callback(lambda done: self._on_response(slot, done))

    async def _hold(
        self, slot: Slot, response: Awaitable[FinishedResponse | Pipelined]
    ) -> FinishedResponse:
        """Let later requests continue when the request is decided.

        After a failed request none continues, because the connection is closed.
        """
        result = await response
        self.held = False
        if self._connection.paused:
            self._connection.resume_soon()
        return result if not isinstance(result, Pipelined) else await self._pipelined(slot, result)

    def _pipelined(self, slot: Slot, pipelined: Pipelined) -> Awaitable[FinishedResponse]:
        if pipelined.passed_by is not None:
            slot.delayed = True
            self.delayed += 1
            self.delayed_key = pipelined.passed_by
        return pipelined.response

    def _on_response(self, slot: Slot, done: asyncio.Future[FinishedResponse]) -> None:
        self.tasks.discard(done)
        if self._closed:
            return
        if done.cancelled():
            logger.info("closing connection: a request was cancelled")
            self._connection.close()
            return
        error = done.exception()
        if error is not None:
            logger.error("closing connection: a request failed unexpectedly", exc_info=error)
            self._connection.close()
            return
        if slot.delayed:
            self.delayed -= 1
            self.behind_delayed &= self.delayed > 0
        response = done.result()
        self._fill(slot, response.parts if isinstance(response, Encoded) else [])
        self._connection.advance()

    def close(self) -> None:
        """Cancel the pending responses."""
        self._closed = True
        # In the next turn: a task cancelled before it began would leave its coroutine unawaited.
        for task in self.tasks:
            self._loop.call_soon(task.cancel)
        if self._deferred:
            abandoning = _abandon(list(self._deferred))
            if run_first_slice(abandoning) is None:
                in_slices(abandoning)
        self._deferred.clear()
        self.slots.clear()


def _abandon(deferred: list[DeferredResponse]) -> Steps[None]:
    for response in deferred:
        response.abandon()
        yield


def _bytes_in_memory(parts: list[ResponsePart]) -> int:
    return sum(len(part) for part in parts if not isinstance(part, FileSlice))
