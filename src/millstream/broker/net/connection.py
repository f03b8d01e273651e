"""One client connection: its state, and the order of its requests and responses.

A client may send requests without waiting for responses (pipelining). Clients rely on two promises
of Kafka: requests of a connection take effect in the order sent, and responses arrive in that order
too. Kafka keeps both by muting the connection: it reads no further request before it has sent the
response. This broker keeps them with less waiting.

A request is in one of these states:

* *received*: its frame is in the receive buffer, complete or not.
* *undecided*: its handler runs, but its effect is not settled. A produce waits for the transaction
  coordinator, or a CreateTopics for the controller. No later request is handled (``held``).
* *decided*: its effect is settled, and only the response is pending. Later requests that may
  overtake are handled.
* *answered*: the response is in its slot of the response queue. It moves to the send queue when all
  responses before it have moved.

**Overtaking.** It concerns handling only. Responses never overtake: a response that is ready early
waits in its slot (``net/response_queue.py``). A handler that returns a plain awaitable is undecided
until it is done, so that most APIs behave as in Kafka. The rows of ``wire/apis.py`` list the
exceptions (``Pipelining``):

* ``ANY``: every later request may overtake. A fetch that waits for records has nothing left to
  decide, nor has a JoinGroup or SyncGroup that waits for other members. A client that sends all its
  requests over one connection is not blocked by a long poll or a rebalance.
* ``SAME_API``: only produces may overtake an appended produce that waits for its acknowledgement.
  The appends are in order, and waiting for each would limit a producer to one batch per round trip
  between replicas. Another API must wait (``behind_delayed``): a ListOffsets behind a produce has
  to see its records.

A handler of such an API that is not decided when it returns says so with ``Hold``.

**Fast path.** Most requests are answered when their handler returns. If the response is in one
piece, nothing is queued before it and nothing received behind it, it goes straight to the socket.

**Muting.** The connection is paused, so that it neither reads nor handles requests, while

* a received request must wait for an earlier one (``held``, ``behind_delayed``). Before such a
  request arrives the connection keeps reading: this is how it notices that the client is gone;
* ``queued.max.requests`` responses are pending, or more than a megabyte of finished responses waits
  in slots;
* more than a megabyte is unsent, because the client does not read. File data costs no memory: it is
  read as the socket drains (``net/send_queue.py``);
* the request memory of all connections is full (``starved``, ``net/request_memory.py``);
* its requests took a few milliseconds of this turn of the loop, and others have to get theirs;
* the broker shuts down: pending responses are sent, further requests are not handled.

``_resume`` is the only way out. It runs in the next turn of the loop, checks all these conditions,
and handles buffered requests before it reads from the socket.

**The end.** A disconnect, a protocol error or a failed handler closes the connection. Pending
requests are cancelled, and no response is sent after the failed one: a client must never see a gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from millstream.broker.net.buffers import BufferPool
from millstream.broker.net.connection_control import UNSENT_LIMIT
from millstream.broker.net.receive_buffer import SIZE, ReceiveBuffer
from millstream.broker.net.request_memory import RequestMemory
from millstream.broker.net.response_queue import ResponseQueue
from millstream.broker.net.responses import CloseConnection, Encoded, Outcome
from millstream.broker.net.send_queue import SendQueue
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.network import DISCONNECT_ERRORS, Stream

logger = logging.getLogger("millstream.connection")

# How long the pipelined requests of one connection are handled before others have their turn.
_TURN_S = 0.002


class Handle(Protocol):
    """Handles a frame of a connection: the dispatcher, or a test in front of it."""

    def __call__(self, connection: Connection, frame: memoryview) -> Outcome: ...


class Connection:
    """Owns one stream. Passes its frames to ``handle``, and sends the responses."""

    def __init__(
        self,
        stream: Stream,
        handle: Handle,
        pool: BufferPool,
        *,
        listener: str,
        max_request_bytes: int,
        max_in_flight: int,
        on_close: Callable[[Connection], None],
        memory: RequestMemory,
        rate_limited: RateLimitedLog | None = None,
    ) -> None:
        self.stream = stream
        self.listener = listener
        self.client_software = ("unknown", "unknown")
        self._loop = asyncio.get_running_loop()
        self.active_at = self._loop.time()
        self._handle = handle
        self._max_request_bytes = max_request_bytes
        self._max_in_flight = max_in_flight
        self._close_callbacks = [on_close]
        self._rate_limited = rate_limited or RateLimitedLog(logger)
        self.receiving = ReceiveBuffer(pool, memory, self)
        self.sending = SendQueue(stream, self, self._loop)
        self.responses = ResponseQueue(self.sending, self, self._loop)
        self.paused = self._resuming = False
        self._closed = self._finishing = False
        stream.watch_readable(self._on_readable)

    def call_on_close(self, callback: Callable[[Connection], None]) -> None:
        """Register a callback, to drop state that is kept for this connection."""
        self._close_callbacks.append(callback)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether no response is pending or unsent."""
        return not self.responses.slots and not self.sending.parts

    @property
    def has_unnoticed_disconnect(self) -> bool:
        """Whether the client is gone, which a paused connection cannot see by reading."""
        return self.paused and self.stream.peer_is_gone()

    @property
    def owes_response(self) -> bool:
        """Whether a response is due and not ready. Otherwise silence is the client's choice."""
        return not self.sending.parts and not self.idle

    # ---- receiving and handling ----

    def _on_readable(self) -> None:
        try:
            count = self.receiving.receive(self.stream)
            if count:
                self.active_at = self._loop.time()
                self._process()
            elif count == 0:
                self.close()
        except (OSError, CloseConnection) as error:
            self.fail(error)

    def _process(self) -> None:
        """Handle the complete frames in the buffer, then send the responses that are ready."""
        receiving, responses = self.receiving, self.responses
        buffer = receiving.data
        if buffer is None:
            return
        start, filled, until = 0, receiving.filled, 0.0
        view = memoryview(buffer)
        while not (self.paused or responses.held) and filled - start >= 4:
            size = SIZE.unpack_from(buffer, start)[0]
            if size < 8 or size > self._max_request_bytes:
                raise CloseConnection(
                    f"a request of {size} bytes (socket.request.max.bytes is {self._max_request_bytes})"
                )
            end = start + 4 + size
            if end > filled:
                break
            if (
                responses.delayed
                and (buffer[start + 4] << 8 | buffer[start + 5]) != responses.delayed_key
            ):
                responses.behind_delayed = True
                break
            outcome = self._handle(self, view[start + 4 : end])
            alone = end == filled and not responses.slots
            if alone and type(outcome) is Encoded and self.sending.send_alone(outcome.parts):
                start = end
                break
            responses.add(outcome)
            if self._is_full():
                self.pause()
            if self._closed:
                return
            start = end
            if filled - start >= 4:
                # A buffer full of expensive requests must not block all other connections.
                now = self._loop.time()
                until = until or now + _TURN_S
                if now >= until:
                    self.pause()
                    self.resume_soon()
        receiving.keep_from(start)
        if receiving.data is not None and (responses.held or responses.behind_delayed):
            # Only now that a request has to wait: until then, reading reveals a disconnect.
            self.pause()
        if responses.slots or self.sending.parts:
            self.advance()

    def _is_full(self) -> bool:
        responses = self.responses
        return (
            self.receiving.starved
            or self.sending.unsent > UNSENT_LIMIT
            or len(responses.slots) >= self._max_in_flight
            or responses.waiting_bytes > UNSENT_LIMIT
        )

    # ---- responding ----

    def advance(self) -> None:
        """Send the responses that are next in order, and handle more requests if there is room."""
        responses, sending = self.responses, self.sending
        try:
            if responses.slots:
                responses.move_ready()
            if sending.parts:
                sending.flush()
        except (OSError, CloseConnection) as error:
            self.fail(error)
            return
        if self._finishing and self.idle:
            self.close()
        elif self.paused and not (responses.held or responses.behind_delayed):
            self.resume_soon()

    # ---- flow control ----

    def pause(self) -> None:
        if not self.paused:
            self.paused = True
            self.stream.watch_readable(None)

    def resume_soon(self) -> None:
        """Resume in the next turn: many pipelined requests would otherwise recurse too deeply."""
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Handle buffered requests and then read again, unless a reason to pause remains."""
        self._resuming = False
        if self._closed or self._finishing or not self.paused:
            return
        if self.responses.held or self.responses.behind_delayed or self._is_full():
            return
        self.paused = False
        self.stream.watch_readable(self._on_readable)
        if self.receiving.data is not None:
            try:
                self._process()
            except (OSError, CloseConnection) as error:
                self.fail(error)

    # ---- closing ----

    def fail(self, error: OSError | CloseConnection) -> None:
        """Close the connection, and log the error unless it is a plain disconnect."""
        if not isinstance(error, DISCONNECT_ERRORS):
            level = logging.WARNING if isinstance(error, OSError) else logging.INFO
            peer = f"{self.stream.peer_host}:{self.stream.peer_port}"
            # Rate-limited, because a client that sends garbage sends more of it.
            self._rate_limited.log(level, "closing", f"closing connection from {peer}: {error}")
        self.close()

    def finish(self) -> None:
        """Handle no further request, send the pending responses, then close."""
        self._finishing = True
        self.pause()
        if self.idle or self.has_unnoticed_disconnect:
            self.close()

    def close(self) -> None:
        """Close the stream and cancel the pending requests."""
        if self._closed:
            return
        self._closed = True
        self.stream.close()
        self.responses.close()
        self.sending.close()
        self.receiving.close()
        for callback in self._close_callbacks:
            callback(self)
