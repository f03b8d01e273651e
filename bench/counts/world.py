"""A broker in this process with a client in memory.

Requests arrive whole, responses are taken whole, and time stands still while it is counted, so that
only the request is processed. Files are real. The network is real except for that one stream, whose
calls stand for the system calls of a socket.
"""

import asyncio
import gc
import statistics
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.counts.counter import Calls, Counts
from millstream.broker.app import Broker
from millstream.core.config import BrokerConfig
from millstream.ports.network import Listener, SocketNetwork, Stream

WARM_UP, MEASURED = 20, 21


class _StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose time can be stopped: then no timer runs."""

    stopped_s: float | None = None

    def time(self) -> float:
        return super().time() if self.stopped_s is None else self.stopped_s


class _Memory:
    """A Stream in memory. The client uses ``deliver`` and ``answers``."""

    peer_host, peer_port, descriptor = "127.0.0.1", 1, 1_000

    def __init__(self) -> None:
        self.receives = self.sends = 0
        self._arrived = memoryview(b"")
        self._sent = bytearray()
        self._read: Callable[[], None] | None = None
        self._changed = asyncio.Event()

    def receive_into(self, buffer: memoryview) -> int | None:
        self.receives += 1
        count = min(len(buffer), len(self._arrived))
        buffer[:count] = self._arrived[:count]
        self._arrived = self._arrived[count:]
        return count or None

    def send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        self.sends += 1
        for buffer in buffers:
            self._sent += buffer
        self._changed.set()
        return sum(map(len, buffers))

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        self._read = callback

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        """Never called: everything is written at once."""

    def peer_is_gone(self) -> bool:
        return False

    def close(self) -> None:
        self._read = None

    def deliver(self, frame: bytes) -> None:
        """Call the reader, as a socket does, while there is data."""
        self._arrived = memoryview(frame)
        while self._arrived:
            if self._read is None:
                raise ConnectionError(
                    "the broker has closed the connection, or has stopped reading"
                )
            self._read()

    async def answers(self, count: int) -> list[bytes]:
        while len(complete := _split(self._sent)) < count:
            self._changed.clear()
            await self._changed.wait()
        self._sent.clear()
        return complete


def _split(data: bytearray) -> list[bytes]:
    """Return the complete responses, each with its length."""
    responses, at = [], 0
    while len(data) - at >= 4 and len(data) - at >= (
        size := 4 + struct.unpack_from(">i", data, at)[0]
    ):
        responses.append(bytes(data[at : at + size]))
        at += size
    return responses


class _Tapped(SocketNetwork):
    """The real network, which stores the callback for new connections."""

    def __init__(self) -> None:
        self.accept: Callable[[Stream], None] | None = None

    def listen(
        self, host: str, port: int, accept: Callable[[Stream], None], **more: Any
    ) -> Listener:
        self.accept = accept
        return super().listen(host, port, accept, **more)


class World:
    """The broker, and one client of it."""

    def __init__(self, loop: _StillLoop, broker: Broker, stream: _Memory) -> None:
        self.broker = broker
        self.calls = Calls()
        self.answers: list[bytes] = []  # responses of the last counted operation
        self._loop = loop
        self._stream = stream

    def ask(self, frame: bytes) -> bytes:
        """Send a frame without counting, while time runs."""
        return self._run([frame], 1)[0]

    def count(self, frames: Callable[[int], Sequence[bytes]]) -> Counts:
        """Return the median counts of an operation over many runs. Each frame has one response."""
        for number in range(WARM_UP):
            operation = frames(number)
            self._run(operation, len(operation))
        runs = [self._count_once(frames(WARM_UP + number)) for number in range(MEASURED)]
        return Counts(*(int(statistics.median_low(column)) for column in zip(*runs, strict=True)))

    def _count_once(self, frames: Sequence[bytes]) -> Counts:
        stream, calls = self._stream, self.calls
        receives, sends = stream.receives, stream.sends
        self._loop.stopped_s = self._loop.time()
        gc.disable()
        try:
            self.answers = self._run(frames, len(frames), calls)
        finally:
            gc.enable()
            self._loop.stopped_s = None
        return Counts(
            calls.python.total(),
            calls.c.total(),
            stream.receives - receives,
            stream.sends - sends,
            calls.files,
            calls.turns,
        )

    def _run(
        self, frames: Sequence[bytes], answers: int, calls: Calls | None = None
    ) -> list[bytes]:
        async def run() -> list[bytes]:
            if calls is not None:
                calls.start()
            try:
                for frame in frames:
                    self._stream.deliver(frame)
                return await self._stream.answers(answers)
            finally:
                if calls is not None:
                    calls.stop()

        return self._loop.run_until_complete(run())


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Start a broker with Kafka's defaults, except for the partitions of internal topics."""
    loop = _StillLoop()
    network = _Tapped()
    config = BrokerConfig.from_texts(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
    )

    async def start() -> Broker:
        broker = Broker(config, network=network)
        await broker.start()
        return broker

    async def connect() -> _Memory:
        stream = _Memory()
        assert network.accept is not None
        network.accept(stream)
        return stream

    broker = loop.run_until_complete(start())
    try:
        yield World(loop, broker, loop.run_until_complete(connect()))
    finally:
        loop.run_until_complete(broker.stop())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
