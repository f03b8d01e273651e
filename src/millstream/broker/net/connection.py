"""One client connection: requests take effect in the order sent, and answers leave in that order.

A request whose answer is not ready at once holds back the requests behind it, as Kafka mutes a
connection until it has answered. ``Pipelining`` in ``wire/apis.py`` lists the exceptions: a fetch
that waits for data keeps its place in the queue of answers while later requests are handled.

Reading pauses while too many answers wait, in number or in bytes, or the client does not take what it asked
for, so that a reader that stops reading costs a bounded amount of memory: file data is read only when the socket has
room for it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from millstream.broker.net.buffers import SMALL, Buffer, BufferPool
from millstream.broker.net.request_memory import RequestMemory
from millstream.broker.net.responses import (
    CloseConnection,
    Encoded,
    Later,
    NoResponse,
    Part,
    Pipelined,
)
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.files import FileSlice
from millstream.ports.network import DISCONNECT_ERRORS, Stream
from millstream.ports.turns import Steps, in_slices, run_first_slice

log = logging.getLogger("millstream.connection")

_SIZE = struct.Struct(">i")
# Above this many unsent bytes no further request of the connection is handled.
_UNSENT_LIMIT = 1024 * 1024
_CHUNK = 512 * 1024
# How long the pipelined requests of one connection are handled before others have their turn.
_TURN_S = 0.002
_MOST_BUFFERS = 64


Answer = Encoded | NoResponse
# A plain awaitable holds back later requests until it is done. It may give a Pipelined, too: then
# the request is decided, and its answer is still to come.
Outcome = Answer | Later | Pipelined | Awaitable[Answer | Pipelined]


class Handle(Protocol):
    """How a connection gets a frame handled: (connection, frame) -> encoded answer, now or later."""

    def __call__(self, connection: Connection, frame: memoryview) -> Outcome: ...


class _Slot:
    """An answer's place in the queue."""

    __slots__ = ("_connection", "delayed", "parts")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.delayed = False  # requests of other APIs wait for this answer
        self.parts: list[Part] | None = None

    def deliver(self, later: Later, answer: Encoded) -> None:
        self._connection.take_later(self, later, answer)

    def become(self, later: Later, answer: Awaitable[Answer]) -> None:
        self._connection.await_later(self, later, answer)


class Connection:
    """Owns one stream. ``handle`` returns an answer, or what will give one (``Outcome``)."""

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
        self.active_at = asyncio.get_running_loop().time()
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._pool = pool
        self._max_request_bytes = max_request_bytes
        self._max_in_flight = max_in_flight
        self._close_callbacks = [on_close]
        self._rate_limited = rate_limited or RateLimitedLog(log)
        self._memory = memory
        self._charged = 0  # bytes of the buffer that are counted in the memory of requests
        self._starved = False  # reads no more before there is memory
        self._buffer: Buffer | None = None
        # A client that sends large frames sends more of them: a buffer of that size, if one is free, need not grow.
        self._usual_capacity = SMALL
        self._filled = 0
        self._slots: deque[_Slot] = deque()
        self._out: deque[Part] = deque()
        self._unsent = 0  # bytes in _out, file slices included
        self._waiting = 0  # bytes in memory of answers whose turn has not come
        self._tasks: set[asyncio.Future[Any]] = set()
        self._laters: set[Later] = set()
        self._paused = self._resuming = False
        self._held = False  # a request is not answered yet that later requests have to wait for
        # The number of delayed produces, their API key, and whether a request of another API waits for them.
        self._delayed, self._delayed_key, self._behind_delayed = 0, -1, False
        self._reading_cold = self._writing = False
        self._closed = False
        self._finishing = False
        stream.watch_readable(self._on_readable)

    def call_on_close(self, callback: Callable[[Connection], None]) -> None:
        """For whoever keeps something about this connection, to forget it."""
        self._close_callbacks.append(callback)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> bool:
        """Nothing is being answered."""
        return not self._slots and not self._out

    @property
    def deaf(self) -> bool:
        """Its client is gone, which it cannot notice because it does not read: too much of it waits already."""
        return self._paused and self.stream.peer_is_gone()

    @property
    def waits_for_us(self) -> bool:
        """An answer is due and not ready; else the silence of the connection is the client's."""
        return not self._out and not self.idle

    # ---- receiving ------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            self._receive()
        except (OSError, CloseConnection) as error:
            self._give_up(error)

    def _receive(self) -> None:
        if self._buffer is None:
            self._buffer = self._pool.spare(self._usual_capacity) or self._pool.take(SMALL)
            self._filled = 0
        view = memoryview(self._buffer)
        if self._filled:
            view = view[self._filled : self._wanted()]
        elif len(view) > SMALL:
            view = view[:SMALL]  # the beginning of a frame: how large it is comes with it
        count = self.stream.receive_into(view)
        if count is None:
            self._release()
            return
        if count == 0:
            self.close()
            return
        self.active_at = self._loop.time()
        self._filled += count
        self._process()

    def _wanted(self) -> int:
        """Where to stop receiving: the end of a large frame, so that nothing has to be moved after it."""
        assert self._buffer is not None
        if self._filled >= 4:
            size: int = _SIZE.unpack_from(self._buffer)[0] + 4
            if size > SMALL:
                return min(size, len(self._buffer))
        return len(self._buffer)

    def _process(self) -> None:
        """Handles the whole frames in the buffer, then sends what is ready."""
        buffer = self._buffer
        if buffer is None:
            return
        start, filled, until = 0, self._filled, 0.0
        view = memoryview(buffer)
        while not (self._paused or self._held) and filled - start >= 4:
            size = _SIZE.unpack_from(buffer, start)[0]
            if size < 8 or size > self._max_request_bytes:
                raise CloseConnection(
                    f"a request of {size} bytes (socket.request.max.bytes is {self._max_request_bytes})"
                )
            end = start + 4 + size
            if end > filled:
                break
            if self._delayed and (buffer[start + 4] << 8 | buffer[start + 5]) != self._delayed_key:
                self._behind_delayed = True
                break
            result = self._handle(self, view[start + 4 : end])
            if end == filled and type(result) is Encoded and self._send_alone(result.parts):
                start = end
                break
            self._answer(result)
            if self._closed:
                return
            start = end
            if filled - start >= 4:
                # A buffer full of costly requests must not keep everybody else waiting.
                now = self._loop.time()
                until = until or now + _TURN_S
                if now >= until:
                    self._pause()
                    self._resume_soon()
        self._keep_rest(buffer, start, filled)
        if self._buffer is not None and (self._held or self._behind_delayed):
            # Only now, when a request has to wait: until then, reading tells when the client goes.
            self._pause()
        if self._slots or self._out:
            self._advance()

    def _send_alone(self, parts: list[Part]) -> bool:
        """The usual answer goes out without a queue: nothing before it, nothing behind it, in one piece. What the socket does
        not take stays in ``parts``, to be queued."""
        if self._closed or self._slots or self._out or len(parts) != 1:
            return False
        part = parts[0]
        if isinstance(part, FileSlice):
            return False
        sent = self.stream.send((part,))
        if sent < len(part):
            parts[0] = memoryview(part)[sent:]
        return sent == len(part)

    def _keep_rest(self, buffer: Buffer, start: int, filled: int) -> None:
        """Moves an incomplete frame to the front of a buffer that can hold it."""
        rest = filled - start
        memory, charged = self._memory, self._charged
        if rest != charged:
            memory.used += rest - charged
            self._charged = rest
            if memory.crowded and rest < charged:
                memory.released(self)
        if rest == 0:
            self._pool.give(buffer)
            self._buffer, self._filled = None, 0
            return
        needed = _SIZE.unpack_from(buffer, start)[0] + 4 if rest >= 4 else SMALL
        # Grow with what has arrived, not with what was announced: a lying size must not cost memory.
        capacity = min(needed, max(SMALL, 4 * rest))
        if capacity > len(buffer):
            larger = self._pool.take(capacity)
            larger[:rest] = memoryview(buffer)[start:filled]
            self._pool.give(buffer)
            self._buffer = larger
            self._usual_capacity = len(larger)
        elif start:
            buffer[:rest] = buffer[start:filled]
        self._filled = rest
        if memory.used > memory.limit and rest >= SMALL and not self._paused and not memory.admits(self):
            self.stop_reading()

    @property
    def received_bytes(self) -> int:
        return self._charged

    @property
    def missing_bytes(self) -> int:
        buffer = self._buffer
        return 0 if buffer is None else max(_SIZE.unpack_from(buffer)[0] + 4 - self._filled, 0)

    def stop_reading(self) -> None:
        self._starved = True
        self._pause()

    def read_on(self) -> None:
        self._starved = False
        self._resume_soon()

    def give_up(self) -> None:
        needed = f"{self.missing_bytes} bytes of a request are missing, and others wait for its memory"
        self._give_up(CloseConnection(f"{needed} (queued.max.request.bytes is {self._memory.limit})"))

    def _release(self) -> None:
        if self._filled == 0 and self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None

    # ---- answering ------------------------------------------------------------------------------------------

    def _answer(self, result: Outcome) -> None:
        if isinstance(result, Encoded):
            if self._slots:
                self._fill(self._new_slot(), result.parts)
            else:
                self._queue(result.parts)
        elif isinstance(result, Later):
            self._laters.add(result)
            result.goes_to(self._new_slot())
        elif isinstance(result, NoResponse):
            pass
        elif isinstance(result, Pipelined):
            slot = self._new_slot()
            self._await(slot, self._pipelined(slot, result))
        else:
            self._held = True
            slot = self._new_slot()
            self._await(slot, self._hold(slot, result))
        if self._full():
            self._pause()

    def _full(self) -> bool:
        return (
            self._starved
            or self._unsent > _UNSENT_LIMIT
            or len(self._slots) >= self._max_in_flight
            or self._waiting > _UNSENT_LIMIT
        )

    def _fill(self, slot: _Slot, parts: list[Part]) -> None:
        slot.parts = parts
        self._waiting += _bytes_in_memory(parts)

    def _new_slot(self) -> _Slot:
        slot = _Slot(self)
        self._slots.append(slot)
        return slot

    def _await(self, slot: _Slot, answer: Awaitable[Answer]) -> None:
        future = asyncio.ensure_future(answer)
        self._tasks.add(future)
        future.add_done_callback(lambda done: self._on_answer(slot, done))

    def await_later(self, slot: _Slot, later: Later, answer: Awaitable[Answer]) -> None:
        if not self._closed:
            self._laters.discard(later)
            self._await(slot, answer)

    def take_later(self, slot: _Slot, later: Later, answer: Encoded) -> None:
        if self._closed:
            return  # it is abandoned in one of the next turns
        self._laters.discard(later)
        if not self._out and self._slots[0] is slot:
            self._slots.popleft()
            self._queue(answer.parts)
        else:
            self._fill(slot, answer.parts)
        self._safely(self._advance)

    async def _hold(self, slot: _Slot, answer: Awaitable[Answer | Pipelined]) -> Answer:
        """Let later requests go on when the answer is there, or as far as a Pipelined says.

        A request that fails lets nothing go on: its connection is closed.
        """
        result = await answer
        self._held = False
        if self._paused:
            self._resume_soon()
        return result if not isinstance(result, Pipelined) else await self._pipelined(slot, result)

    def _pipelined(self, slot: _Slot, result: Pipelined) -> Awaitable[Answer]:
        if result.passed_by is not None:
            slot.delayed = True
            self._delayed += 1
            self._delayed_key = result.passed_by
        return result.answer

    def _on_answer(self, slot: _Slot, done: asyncio.Future[Answer]) -> None:
        self._tasks.discard(done)
        if self._closed:
            return
        if done.cancelled():
            log.info("closing connection: a request was cancelled")
            self.close()
            return
        error = done.exception()
        if error is not None:
            log.error("closing connection: a request failed unexpectedly", exc_info=error)
            self.close()
            return
        if slot.delayed:
            self._delayed -= 1
            self._behind_delayed &= self._delayed > 0
        result = done.result()
        self._fill(slot, result.parts if isinstance(result, Encoded) else [])
        self._safely(self._advance)

    def _queue(self, parts: list[Part]) -> None:
        for part in parts:
            self._out.append(part)
            self._unsent += part.length if isinstance(part, FileSlice) else len(part)

    # ---- sending --------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Sends answers that are ready and next in order; handles more requests when there is room again."""
        slots = self._slots
        while slots and (parts := slots[0].parts) is not None and self._unsent <= _UNSENT_LIMIT:
            slots.popleft()
            self._waiting -= _bytes_in_memory(parts)
            self._queue(parts)
        if self._out and not self._writing and not self._reading_cold:
            self._flush()
        if self._finishing and self.idle:
            self.close()
        elif self._paused and not (self._held or self._behind_delayed):
            self._resume_soon()

    def _flush(self) -> None:
        while self._out:
            buffers = self._gather()
            if buffers is None:
                return
            sent = self.stream.send(buffers)
            self._consume(sent, buffers)
            if sent < sum(map(len, buffers)):
                self._watch_writable()
                return

    def _gather(self) -> list[bytes | bytearray | memoryview] | None:
        """Buffers for one send; None while file data comes from the disk in a thread."""
        buffers: list[bytes | bytearray | memoryview] = []
        index, size, most = 0, 0, min(len(self._out), _MOST_BUFFERS)
        while index < most and size < _CHUNK:
            part = self._out[index]
            if isinstance(part, FileSlice):
                data = part.read_nowait(0, min(part.length, _CHUNK))
                if data is None:
                    break
                self._replace_slice(index, part, data)
                part = data
            buffers.append(part)
            index += 1
            size += len(part)
        if buffers:
            return buffers
        cold = self._out[0]
        assert isinstance(cold, FileSlice)
        self._read_cold(cold)
        return None

    def _replace_slice(self, index: int, part: FileSlice, data: bytes | bytearray) -> None:
        """What was read takes the place of that piece of the slice."""
        out = self._out
        if len(data) == 0:
            raise CloseConnection("a log file ended before the data that was promised")
        out[index] = data
        if len(data) < part.length:
            rest = FileSlice(part.file, part.position + len(data), part.length - len(data))
            out.insert(index + 1, rest)

    def _read_cold(self, part: FileSlice) -> None:
        self._reading_cold = True
        size = min(part.length, _CHUNK)
        future = self._loop.run_in_executor(None, part.read, 0, size)
        self._tasks.add(future)

        def done(future: asyncio.Future[bytes]) -> None:
            self._tasks.discard(future)
            self._reading_cold = False
            if self._closed or future.cancelled():
                return
            if future.exception() is not None:
                log.warning("closing connection: cannot read a log file: %s", future.exception())
                self.close()
                return
            self._safely(lambda: self._arrived(part, future.result()))

        future.add_done_callback(done)

    def _arrived(self, part: FileSlice, data: bytes) -> None:
        self._replace_slice(0, part, data)
        self._advance()

    def _consume(self, sent: int, buffers: list[bytes | bytearray | memoryview]) -> None:
        self._unsent -= sent
        for buffer in buffers:
            if sent < len(buffer):
                if sent:
                    self._out[0] = memoryview(buffer)[sent:]
                return
            sent -= len(buffer)
            self._out.popleft()

    def _watch_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self.stream.watch_writable(self._on_writable)

    def _on_writable(self) -> None:
        self._writing = False
        self.stream.watch_writable(None)
        self.active_at = self._loop.time()
        self._safely(self._advance)

    # ---- flow control and the end ---------------------------------------------------------------------------

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.stream.watch_readable(None)

    def _resume_soon(self) -> None:
        """Not at once: a buffer full of pipelined requests would recurse once per request."""
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Reads again when there is room: first what is in the buffer already, then from the socket."""
        self._resuming = False
        if self._closed or self._finishing or not self._paused:
            return
        if self._held or self._behind_delayed:
            return
        if self._full():
            return
        self._paused = False
        self.stream.watch_readable(self._on_readable)
        if self._buffer is not None:
            self._safely(self._process)

    def _safely(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except (OSError, CloseConnection) as error:
            self._give_up(error)

    def _give_up(self, error: OSError | CloseConnection) -> None:
        if not isinstance(error, DISCONNECT_ERRORS):
            level = logging.WARNING if isinstance(error, OSError) else logging.INFO
            peer = f"{self.stream.peer_host}:{self.stream.peer_port}"
            # Whoever sends garbage sends more of it.
            self._rate_limited.log(level, "closing", f"closing connection from {peer}: {error}")
        self.close()

    def finish(self) -> None:
        """Takes no further request, answers what is there, then closes."""
        self._finishing = True
        self._pause()
        if self.idle or self.deaf:
            self.close()

    def close(self) -> None:
        """Ends the connection; parked requests are cancelled."""
        if self._closed:
            return
        self._closed = True
        self.stream.close()
        # Not at once: a task that has not begun would leave the coroutine in it unawaited.
        for task in self._tasks:
            self._loop.call_soon(task.cancel)
        if self._laters:
            abandoning = _abandon(list(self._laters))
            if run_first_slice(abandoning) is None:
                in_slices(abandoning)
        self._laters.clear()
        self._slots.clear()
        self._out.clear()
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None
        self._memory.used -= self._charged
        self._charged = 0
        if self._memory.crowded:
            self._memory.released(self)
        for callback in self._close_callbacks:
            callback(self)


def _abandon(laters: list[Later]) -> Steps[None]:
    for later in laters:
        later.abandon()
        yield


def _bytes_in_memory(parts: list[Part]) -> int:
    return sum(len(part) for part in parts if not isinstance(part, FileSlice))
