"""Systems beside Kafka that keep streams, each spoken to over its own protocol: raw sockets, many messages in flight, no client library.

A module per protocol has `ping` (the first answer), `create` (a stream that keeps what it is given in files), a `Writer` and a `Reader`.
Payloads are hexadecimal text or start with a clock, always of one size, so that messages can be counted without being taken apart.
"""

import importlib
import select
import socket
from collections.abc import Iterator
from typing import Any

from bench.load.frames import connect

RECEIVE_BYTES = 1 << 20
BLOCK_BYTES = 500_000  # of messages that are sent at once
IN_FLIGHT = 4  # blocks without an acknowledgement
SILENCE_S = 20.0


def protocol(name: str) -> Any:
    """The module of this protocol."""
    return importlib.import_module(f"bench.streams.{name}")


class Line:
    """A connection whose reader asks for bytes until it has enough of them."""

    def __init__(self, address: str) -> None:
        self.sock = connect(address, SILENCE_S)
        self.buffer = bytearray()

    def more(self) -> None:
        """At least another byte."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.buffer += data

    def until(self, end: bytes) -> bytes:
        """Up to and with these bytes."""
        while (at := self.buffer.find(end)) < 0:
            self.more()
        return self.take(at + len(end))

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.more()
        found = bytes(self.buffer[:count])
        del self.buffer[:count]
        return found


class BlockWriter:
    """Sends blocks of messages and counts acknowledgements as they come; neither side ever waits for the other to read."""

    def __init__(self, sock: socket.socket, message_bytes: int) -> None:
        self.sock = sock
        self.per_block = max(1, BLOCK_BYTES // message_bytes)
        self.unsent = memoryview(b"")

    def block(self, count: int) -> bytes:
        """So many messages as the protocol has them."""
        raise NotImplementedError

    def acknowledged(self, data: bytes) -> int:
        """How many messages these bytes acknowledge, with what came before."""
        raise NotImplementedError

    def send(self, messages: int) -> None:
        """Until every one is acknowledged."""
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
        """One message, as the protocol has it, without waiting; how many earlier ones have been acknowledged meanwhile."""
        self.sock.setblocking(False)
        self.unsent, done = memoryview(message), 0
        while self.unsent:
            done += self._turn()
        return done

    def settle(self, messages: int) -> None:
        """Until so many more are acknowledged."""
        while messages > 0:
            messages -= self._turn()

    def _turn(self) -> int:
        readable, writable, _ = select.select([self.sock], [self.sock] if self.unsent else [], [], SILENCE_S)
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
    """One message after the other, each acknowledged by lines of text."""

    def __init__(self, sock: socket.socket, message_bytes: int) -> None:
        super().__init__(sock, message_bytes)
        self.payload, self._rest = text(message_bytes), b""

    def message(self, payload: bytes) -> bytes:
        """One, as the protocol has it."""
        raise NotImplementedError

    def block(self, count: int) -> bytes:
        return self.message(self.payload) * count

    def whole_lines(self, data: bytes) -> bytes:
        """What has come, up to the last end of a line; the rest waits for more."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        return data[:end]


def text(message_bytes: int) -> bytes:
    """A payload that is not all the same byte."""
    return (b"0123456789abcdef" * (message_bytes // 16 + 1))[:message_bytes]


Payloads = Iterator[bytes]
