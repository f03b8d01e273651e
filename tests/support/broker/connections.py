"""A Connection on one end of a socket pair, and its client on the other, inside one event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.broker.net.buffers import BufferPool
from millstream.broker.net.connection import Connection
from millstream.broker.net.request_memory import RequestMemory
from millstream.broker.net.responses import Encoded, Outcome
from millstream.ports.network import SocketStream

SIZE = struct.Struct(">i")
PATIENCE_S = 120.0

Handler = Callable[[bytes], Outcome]


def frame(body: bytes) -> bytes:
    return SIZE.pack(len(body)) + body


def echo(body: bytes) -> Encoded:
    return Encoded([frame(body)])


class Pair:
    """``handle`` gets a copy of each frame. ``seen`` has the frames that were handled."""

    def __init__(
        self,
        handle: Handler = echo,
        *,
        max_request_bytes: int = 1 << 20,
        max_in_flight: int = 500,
        send_buffer: int = 0,
        memory: RequestMemory | None = None,
    ) -> None:
        server, self.client = socket.socketpair()
        for end in (server, self.client):
            end.setblocking(False)
        if send_buffer:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.loop = asyncio.get_running_loop()
        self.seen: list[bytes] = []
        self.closed = 0
        self.pool = BufferPool()
        self._handle = handle
        self.stream = SocketStream(self.loop, server, ("test", 0))
        self.connection = Connection(
            self.stream,
            self._on_frame,
            self.pool,
            listener="TEST",
            max_request_bytes=max_request_bytes,
            max_in_flight=max_in_flight,
            on_close=self._on_close,
            memory=memory or RequestMemory(),
        )

    def _on_frame(self, connection: Connection, data: memoryview) -> Any:
        self.seen.append(bytes(data))
        return self._handle(bytes(data))

    def _on_close(self, connection: Connection) -> None:
        self.closed += 1

    async def send(self, *bodies: bytes) -> None:
        await self.write(b"".join(map(frame, bodies)))

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.loop.sock_sendall(self.client, data)

    async def receive(self) -> bytes:
        """Return the next response; empty at the end of the stream."""
        head = await self._read(4)
        return await self._read(SIZE.unpack(head)[0]) if head else b""

    async def _read(self, count: int) -> bytes:
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while len(data) < count:
                part = await self.loop.sock_recv(self.client, count - len(data))
                if not part:
                    return b""
                data += part
        return data

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - any condition, not an event
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        """Let the loop do everything that it can do now."""
        for _ in range(20):
            await asyncio.sleep(0)

    def close(self) -> None:
        self.connection.close()
        self.client.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in a new event loop. Unawaited coroutines and unseen errors fail it."""
    problems: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: problems.append(context)
        )
        await test()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert problems == []
