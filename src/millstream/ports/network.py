"""The network port: byte streams that never block, and listeners that accept them.

The implementation uses raw non-blocking sockets on ``loop.add_reader``/``add_writer``. They are as
fast as uvloop's transports and work on asyncio as well. No other way allows receiving into our
buffers and sending several buffers with one call.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

# Errors of a connection that ended; none of these is worth a stack trace.
DISCONNECT_ERRORS = (ConnectionError, TimeoutError, BrokenPipeError)
# Errors of accept() without free descriptors: pause instead of spinning.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_ACCEPT_PAUSE_S = 0.5
# Without POLLRDHUP, only a reset is detected.
_PEER_GONE: int = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Stream(Protocol):
    """A connected, non-blocking byte stream."""

    peer_host: str
    peer_port: int

    @property
    def descriptor(self) -> int:
        """The file descriptor. It was the lowest free number, so it shows how many are in use."""

    def receive_into(self, buffer: memoryview) -> int | None:
        """Return the number of bytes received: 0 at the end of the stream, None if no data yet."""

    def send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Return the number of bytes accepted, possibly 0."""

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever data can be received; None stops that."""

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever data can be sent; None stops that."""

    def peer_is_gone(self) -> bool:
        """Return whether the peer has closed, even if some of its data is not received yet."""

    def close(self) -> None:
        """Close the stream. No callback is called afterwards."""


class Listener(Protocol):
    """A bound address that accepts streams."""

    host: str
    port: int

    def start(self) -> None:
        """Start accepting. Before that, connections are refused: no client waits for a recovery."""

    def close(self) -> None:
        """Stop accepting. Accepted streams stay open."""


class Network(Protocol):
    """A source of streams. It is used per listener and per connection, never per byte."""

    def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[Stream], None],
        *,
        backlog: int = 128,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> Listener:
        """Bind the address (port 0: any free port); raise OSError if that is not possible."""

    async def connect(self, host: str, port: int, timeout_s: float) -> Stream:
        """Return a stream to a listener; raise OSError, which includes TimeoutError."""


class SocketNetwork:
    """The network of the operating system."""

    def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[Stream], None],
        *,
        backlog: int = 128,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> Listener:
        return SocketListener(
            asyncio.get_running_loop(),
            host,
            port,
            accept,
            backlog=backlog,
            send_buffer=send_buffer,
            receive_buffer=receive_buffer,
        )

    async def connect(self, host: str, port: int, timeout_s: float) -> Stream:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, _kind, _protocol, _name, address = addresses[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                _tune(sock)
                await loop.sock_connect(sock, address)
            except BaseException:
                sock.close()
                raise
        return SocketStream(loop, sock, (host, port))


class SocketStream:
    """A Stream over a TCP socket."""

    __slots__ = ("_fd", "_loop", "_reading", "_socket", "_writing", "peer_host", "peer_port")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: tuple[str, int]
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._reading = self._writing = False
        self.peer_host, self.peer_port = peer

    @property
    def descriptor(self) -> int:
        return self._fd

    def receive_into(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0])
            return self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_reader(self._fd, callback)
            self._reading = True
        elif self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_writer(self._fd, callback)
            self._writing = True
        elif self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False

    def peer_is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, _PEER_GONE)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.watch_readable(None)
        self.watch_writable(None)
        self._socket.close()


class SocketListener:
    """A listening socket that hands every accepted stream to a callback."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        accept: Callable[[Stream], None],
        *,
        backlog: int = 128,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> None:
        self._loop = loop
        self._accept = accept
        self._backlog = backlog
        self._socket = _bind(host, port, send_buffer, receive_buffer)
        self.host, self.port = host, self._socket.getsockname()[1]

    def start(self) -> None:
        self._socket.listen(self._backlog)
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        # Bounded, so that a flood of connections does not starve existing ones.
        for _ in range(64):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause()
                    return
                continue  # a network error of the new connection, see accept(2)
            try:
                _tune(sock)
            except OSError:
                sock.close()
                continue
            self._accept(SocketStream(self._loop, sock, (address[0], address[1])))

    def _pause(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(_ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self.start()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _bind(host: str, port: int, send_buffer: int, receive_buffer: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these. Without them the kernel tunes the buffers, which is faster
        # on one machine.
        if send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        if receive_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
