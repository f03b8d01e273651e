"""The bytes that a connection has received of requests that are not handled yet."""

from __future__ import annotations

import struct

from millstream.broker.net.buffers import SMALL, Buffer, BufferPool
from millstream.broker.net.connection_control import ConnectionControl
from millstream.broker.net.request_memory import RequestMemory
from millstream.broker.net.responses import CloseConnection
from millstream.ports.network import Stream

SIZE = struct.Struct(">i")


class ReceiveBuffer:
    """Holds a buffer of the pool while part of a request is in it.

    It counts its bytes in the shared request memory, which sees it as a ``Reader``: above the limit
    of that memory it may stop its connection from reading (``starved``).
    """

    __slots__ = (
        "_charged",
        "_connection",
        "_expected_capacity",
        "_memory",
        "_pool",
        "data",
        "filled",
        "starved",
    )

    def __init__(
        self, pool: BufferPool, memory: RequestMemory, connection: ConnectionControl
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._connection = connection
        self.data: Buffer | None = None
        self.filled = 0
        # Whether the connection must not read before other requests release memory.
        self.starved = False
        # The bytes that are counted in the request memory.
        self._charged = 0
        # A client that sends large frames sends more of them. A buffer of that size, if the pool
        # has one, need not grow.
        self._expected_capacity = SMALL

    def receive(self, stream: Stream) -> int | None:
        """Receive once. Return the number of bytes, 0 at the end of the stream, None if there are
        no bytes yet."""
        if self.data is None:
            self.data = self._pool.spare(self._expected_capacity) or self._pool.take(SMALL)
            self.filled = 0
        view = memoryview(self.data)
        if self.filled:
            view = view[self.filled : self._receive_limit(self.data)]
        elif len(view) > SMALL:
            # The beginning of a frame, whose size is not known yet.
            view = view[:SMALL]
        count = stream.receive_into(view)
        if count is None:
            if self.filled == 0:
                self._pool.give(self.data)
                self.data = None
        else:
            self.filled += count
        return count

    def _receive_limit(self, data: Buffer) -> int:
        """Return where to stop receiving: at the end of a large frame, so that no bytes of the next
        one have to be moved."""
        if self.filled >= 4:
            size: int = SIZE.unpack_from(data)[0] + 4
            if size > SMALL:
                return min(size, len(data))
        return len(data)

    def keep_from(self, start: int) -> None:
        """Drop the bytes before ``start``, and move the rest to the front of a buffer for it."""
        buffer = self.data
        assert buffer is not None
        rest = self.filled - start
        memory, charged = self._memory, self._charged
        if rest != charged:
            memory.used += rest - charged
            self._charged = rest
            if memory.crowded and rest < charged:
                memory.released(self)
        if rest == 0:
            self._pool.give(buffer)
            self.data, self.filled = None, 0
            return
        needed = SIZE.unpack_from(buffer, start)[0] + 4 if rest >= 4 else SMALL
        # Grow with the bytes received, not with the size announced: a false size must not cost
        # memory.
        capacity = min(needed, max(SMALL, 4 * rest))
        if capacity > len(buffer):
            larger = self._pool.take(capacity)
            larger[:rest] = memoryview(buffer)[start : self.filled]
            self._pool.give(buffer)
            self.data = larger
            self._expected_capacity = len(larger)
        elif start:
            buffer[:rest] = buffer[start : self.filled]
        self.filled = rest
        must_ask = memory.used > memory.limit and rest >= SMALL and not self._connection.paused
        if must_ask and not memory.admits(self):
            self.stop_reading()

    def close(self) -> None:
        """Return the buffer to the pool, and its bytes to the request memory."""
        if self.data is not None:
            self._pool.give(self.data)
            self.data = None
        self._memory.used -= self._charged
        self._charged = 0
        if self._memory.crowded:
            self._memory.released(self)

    # ---- as a reader of the request memory ----

    @property
    def received_bytes(self) -> int:
        return self._charged

    @property
    def missing_bytes(self) -> int:
        data = self.data
        return 0 if data is None else max(SIZE.unpack_from(data)[0] + 4 - self.filled, 0)

    def stop_reading(self) -> None:
        self.starved = True
        self._connection.pause()

    def resume_reading(self) -> None:
        self.starved = False
        self._connection.resume_soon()

    def give_up(self) -> None:
        problem = (
            f"{self.missing_bytes} bytes of a request are missing, and others wait for its memory"
        )
        self._connection.fail(
            CloseConnection(f"{problem} (queued.max.request.bytes is {self._memory.limit})")
        )
