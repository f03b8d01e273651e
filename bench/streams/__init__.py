"""Systems beside Kafka that store streams, each over its own protocol.

The clients use raw sockets and many messages in flight, without a client library. A module per
protocol has `ping` (the first response), `create` (a stream that is stored in files), a `Writer`
and a `Reader`. Payloads are hexadecimal text or start with a clock, and all have the same size, so
that messages can be counted without parsing.
"""

import importlib
import select
import socket
from collections.abc import Iterator
from typing import Any

from bench.load.frames import connect

RECEIVE_BYTES = 1 << 20
BLOCK_BYTES = 500_000  # of messages sent at once
IN_FLIGHT = 4  # blocks that are not acknowledged
SILENCE_S = 20.0


def protocol(name: str) -> Any:
    """Return the module of this protocol."""
    return importlib.import_module(f"bench.streams.{name}")


class Line:
    """A connection with a buffer that grows until it has enough bytes."""

    def __init__(self, address: str) -> None:
        self.sock = connect(address, SILENCE_S)
        self.buffer = bytearray()

    def more(self) -> None:
        """Receive at least one byte."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.buffer += data

    def until(self, end: bytes) -> bytes:
        """Return the bytes up to and including ``end``."""
        while (at := self.buffer.find(end)) < 0:
            self.more()
        return self.take(at + len(end))

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.more()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data


class BlockWriter:
    """Sends blocks of messages and counts acknowledgements; neither side waits for the other."""

    def __init__(self, sock: socket.socket, message_bytes: int) -> None:
        self.sock = sock
        self.per_block = max(1, BLOCK_BYTES // message_bytes)
        self.unsent = memoryview(b"")

    def block(self, count: int) -> bytes:
        """Return ``count`` messages in the format of the protocol."""
        raise NotImplementedError

    def acknowledged(self, data: bytes) -> int:
        """Return how many messages these bytes acknowledge, with the bytes before."""
        raise NotImplementedError

    def send(self, messages: int) -> None:
        """Send messages, and wait until all are acknowledged."""
        whole, sent, done = self.block(self.per_block), 0, 0
        self.sock.setblocking(False)
        while done < messages:
            if not self.unsent and sent < messages and sent - done < IN_FLIGHT * self.per_block:
                count = min(self.per_block, messages - sent)
                self.unsent = memoryview(whole if count == self.per_block else self.block(count))
                sent += count
            done += self._turn()
        self.sock.setblocking(True)

    def post(self, message: bytes) -> int:
        """Send one encoded message without waiting; return how many were acknowledged."""
        self.sock.setblocking(False)
        self.unsent, done = memoryview(message), 0
        while self.unsent:
            done += self._turn()
        return done

    def settle(self, messages: int) -> None:
        """Wait until ``messages`` more are acknowledged."""
        while messages > 0:
            messages -= self._turn()

    def _turn(self) -> int:
        readable, writable, _ = select.select(
            [self.sock], [self.sock] if self.unsent else [], [], SILENCE_S
        )
        if not readable and not writable:
            raise TimeoutError(f"no acknowledgement in {SILENCE_S:.0f} s")
        if writable:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        if not readable:
            return 0
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        return self.acknowledged(data)


class LineWriter(BlockWriter):
    """Sends one message after the other; each is acknowledged by lines of text."""

    def __init__(self, sock: socket.socket, message_bytes: int) -> None:
        super().__init__(sock, message_bytes)
        self.payload, self._rest = text(message_bytes), b""

    def message(self, payload: bytes) -> bytes:
        """Return one message in the format of the protocol."""
        raise NotImplementedError

    def block(self, count: int) -> bytes:
        return self.message(self.payload) * count

    def whole_lines(self, data: bytes) -> bytes:
        """Return the data up to the last end of a line; keep the rest for later."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        return data[:end]


def text(message_bytes: int) -> bytes:
    """Return a payload of different bytes."""
    return (b"0123456789abcdef" * (message_bytes // 16 + 1))[:message_bytes]


Payloads = Iterator[bytes]
