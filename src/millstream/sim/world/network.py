"""A simulated network behind the `Network` port.

Its streams have latency, and can be cut, slowed down and reset. A cut link behaves as TCP does:
bytes wait, are resent after the link has healed, and after a while the sender gives up. A killed
process leaves a kernel behind that closes its streams. A crashed machine leaves nothing, and its
peers notice only when they send. Links are directed, so that one direction alone can be cut.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable, Sequence

from millstream.ports.network import Listener, Stream
from millstream.sim.world.loop import Scheduler, SimLoop

Link = tuple[str, str]
Buffers = Sequence[bytes | bytearray | memoryview]

_WINDOW = 256 * 1024
_GIVE_UP_S = 15.0  # for bytes that are not acknowledged
_RETRY_S = 1.0
_FIN, _RST = b"FIN", b"RST"
_EPSILON_S = 1e-7


class SimNetwork:
    """All links and the network state of all kernels."""

    def __init__(self, scheduler: Scheduler, seed: str) -> None:
        self.scheduler = scheduler
        self.dice = random.Random(seed)
        self.latency_s = (0.000_05, 0.001)
        self.connects = 0
        self.resets = 0
        self._cut: dict[Link, None] = {}
        self._slow: dict[Link, float] = {}
        self._down: set[str] = set()
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._streams: dict[SimStream, None] = {}
        self._held: dict[Link, dict[_Pipe, None]] = {}

    # -- faults

    def cut(self, source: str, target: str) -> None:
        """Cut the link from one host to the other. The way back is another link."""
        self._cut[source, target] = None

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Heal one link, or all of them, including slow ones."""
        links = [(source, target)] if source and target else [*self._cut, *self._slow]
        for link in links:
            self._slow.pop(link, None)
            self._cut.pop(link, None)
            for pipe in self._held.pop(link, {}):
                pipe.resume_later()

    def slow_down(self, source: str, target: str, extra_s: float) -> None:
        self._slow[source, target] = extra_s

    def speed_up(self, source: str, target: str) -> None:
        self._slow.pop((source, target), None)

    def links(self) -> list[Link]:
        """Return the links that streams use now."""
        return list(dict.fromkeys((stream.host, stream.peer_host) for stream in self._streams))

    def reset_some(self, share: float, host: str | None = None) -> int:
        """Reset a share of the connections, at both ends."""
        chosen = [s for s in self._streams if s.is_client and host in (None, s.host, s.peer_host)]
        chosen = [stream for stream in chosen if self.dice.random() < share]
        for stream in chosen:
            stream.lose(ConnectionResetError(errno.ECONNRESET, "reset by the network"))
            if stream.peer is not None:
                stream.peer.lose(ConnectionResetError(errno.ECONNRESET, "reset by the network"))
        self.resets += len(chosen)
        return len(chosen)

    def process_died(self, host: str) -> None:
        """Close the streams of a process, as its kernel does."""
        self._close_listeners(host)
        for stream in [s for s in self._streams if s.host == host]:
            stream.end(_RST if self.dice.random() < 0.5 else _FIN)

    def machine_died(self, host: str) -> None:
        """Drop the streams of a machine without a packet to its peers."""
        self._down.add(host)
        self._close_listeners(host)
        for stream in [s for s in self._streams if s.host == host]:
            stream.forget()

    def machine_started(self, host: str) -> None:
        self._down.discard(host)

    def _close_listeners(self, host: str) -> None:
        for address in [a for a in self._listeners if a[0] == host]:
            del self._listeners[address]

    # -- for streams

    def is_down(self, host: str) -> bool:
        return host in self._down

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def delay(self, source: str, target: str) -> float:
        low, high = self.latency_s
        delay = self.dice.uniform(low, high)
        if self.dice.random() < 0.01:
            delay += self.dice.uniform(0.0, 0.2)  # a packet was lost and resent
        return delay + self._slow.get((source, target), 0.0)

    def hold(self, pipe: _Pipe) -> None:
        self._held.setdefault(pipe.link, {})[pipe] = None

    def opened(self, stream: SimStream) -> None:
        self._streams[stream] = None

    def closed(self, stream: SimStream) -> None:
        self._streams.pop(stream, None)

    def listener_at(self, host: str, port: int) -> SimListener | None:
        listener = self._listeners.get((host, port))
        return listener if listener is not None and listener.started else None

    def bind(self, listener: SimListener) -> None:
        address = (listener.host, listener.port)
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "address in use")
        self._listeners[address] = listener

    def unbind(self, listener: SimListener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]


class HostNetwork:
    """Implements `Network` for one process on one host."""

    def __init__(self, network: SimNetwork, host: str, loop: SimLoop) -> None:
        self._network = network
        self._host = host
        self._loop = loop
        self._next_port = 40_000

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
        listener = SimListener(self._network, self._loop, self._host, port or 9092, accept)
        self._network.bind(listener)
        return listener

    async def connect(self, host: str, port: int, timeout_s: float) -> Stream:
        async with asyncio.timeout(timeout_s):
            return await self._connect(host, port)

    async def _connect(self, host: str, port: int) -> Stream:
        network, retry_s = self._network, _RETRY_S
        while True:
            await asyncio.sleep(network.delay(self._host, host))
            if not network.is_cut(self._host, host) and not network.is_down(host):
                break
            await asyncio.sleep(retry_s)  # the first packet was lost
            retry_s *= 2
        listener = network.listener_at(host, port)
        mine = listener.connected(self) if listener is not None else None
        try:
            while network.is_cut(host, self._host):  # noqa: ASYNC110 - half open
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(network.delay(host, self._host))
        except asyncio.CancelledError:
            if mine is not None:
                mine.close()
            raise
        if mine is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refuses connections")
        return mine

    def client_end(self, listener: SimListener) -> tuple[SimStream, SimStream]:
        """Return both ends of a new connection."""
        self._next_port += 1
        network = self._network
        mine = SimStream(
            network, self._loop, self._host, (listener.host, listener.port), is_client=True
        )
        theirs = SimStream(network, listener.loop, listener.host, (self._host, self._next_port))
        mine.join(theirs)
        theirs.join(mine)
        return mine, theirs


class SimListener:
    """A listening port of a host."""

    def __init__(
        self,
        network: SimNetwork,
        loop: SimLoop,
        host: str,
        port: int,
        accept: Callable[[Stream], None],
    ) -> None:
        self._network = network
        self._accept = accept
        self.loop = loop
        self.host, self.port = host, port
        self.started = False

    def start(self) -> None:
        self.started = True

    def connected(self, client: HostNetwork) -> SimStream:
        """Accept a connection in the kernel. The process learns of it when it runs."""
        mine, theirs = client.client_end(self)
        self._network.connects += 1
        self.loop.call_soon(self._pass_on, theirs)
        return mine

    def _pass_on(self, stream: SimStream) -> None:
        if self.started:
            self._accept(stream)
        else:
            stream.end(_RST)

    def close(self) -> None:
        self.started = False
        self._network.unbind(self)


class _Pipe:
    """One direction of a connection: segments arrive in order, late, or not at all."""

    def __init__(self, network: SimNetwork, sender: SimStream, receiver: SimStream) -> None:
        self.link = (sender.host, receiver.host)
        self.in_flight = 0
        self._network = network
        self._sender, self._receiver = sender, receiver
        self._last_at = 0.0
        self._waiting: deque[bytes] = deque()
        self._held_since: float | None = None

    def send(self, segment: bytes, now: float) -> None:
        self.in_flight += len(segment)
        arrives = max(now + self._network.delay(*self.link), self._last_at + _EPSILON_S)
        self._last_at = arrives
        self._network.scheduler.at(arrives, self._arrive, segment)

    def _arrive(self, segment: bytes) -> None:
        if self._held_since is not None or self._blocked():
            if segment is not _RST:  # a reset is never resent
                self._hold(segment)
            return
        self._deliver(segment)

    def _blocked(self) -> bool:
        network = self._network
        return network.is_cut(*self.link) or network.is_down(self.link[1])

    def _hold(self, segment: bytes) -> None:
        self._waiting.append(segment)
        network = self._network
        if self._held_since is None:
            self._held_since = network.scheduler.now
            network.scheduler.at(
                network.scheduler.now + _GIVE_UP_S, self._give_up, self._held_since
            )
            if network.is_cut(*self.link):
                network.hold(self)
            else:
                network.scheduler.at(network.scheduler.now + _RETRY_S, self._resume)

    def _give_up(self, since: float) -> None:
        if self._held_since == since and self._waiting:
            self._sender.lose(TimeoutError(errno.ETIMEDOUT, "the other end does not respond"))

    def resume_later(self) -> None:
        """Resend the held segments of a healed link when the sender's timer expires."""
        network = self._network
        network.scheduler.at(network.scheduler.now + network.dice.uniform(0.01, 1.0), self._resume)

    def _resume(self) -> None:
        if self._held_since is None:
            return
        if self._network.is_cut(*self.link):
            self._network.hold(self)
            return
        if self._blocked():
            self._network.scheduler.at(self._network.scheduler.now + _RETRY_S, self._resume)
            return
        self._held_since = None
        waiting, self._waiting = self._waiting, deque()
        for segment in waiting:
            self._deliver(segment)

    def _deliver(self, segment: bytes) -> None:
        if self._receiver.forgotten:
            # The machine has restarted and does not know this connection.
            self._sender.lose(ConnectionResetError(errno.ECONNRESET, "reset by peer"))
            return
        if segment is _FIN:
            self._receiver.ended()
        elif segment is _RST:
            self._receiver.lose(ConnectionResetError(errno.ECONNRESET, "reset by peer"))
        elif not self._receiver.take(segment):
            self._sender.lose(ConnectionResetError(errno.ECONNRESET, "reset by peer"))

    def received(self, count: int, now: float) -> None:
        """Free space in the window after a read. The sender learns of it later."""
        self.in_flight -= count
        if self._sender.waits_for_space:  # a sender that waits later sees the space at once
            delay = self._network.delay(self.link[1], self.link[0])
            self._network.scheduler.at(now + delay, self._sender.check_writable)


class SimStream:
    """Implements `Stream`: one end of a connection."""

    descriptor = 10

    def __init__(
        self,
        network: SimNetwork,
        loop: SimLoop,
        host: str,
        peer: tuple[str, int],
        *,
        is_client: bool = False,
    ) -> None:
        self._network = network
        self._loop = loop
        self.host = host
        self.peer_host, self.peer_port = peer
        self.is_client = is_client
        self.peer: SimStream | None = None
        self.forgotten = False
        self._pipe: _Pipe | None = None
        self._inbox = bytearray()
        self._eof = self._closed = False
        self._error: OSError | None = None
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._read_due = self._write_due = False
        network.opened(self)

    def join(self, peer: SimStream) -> None:
        self.peer = peer
        self._pipe = _Pipe(self._network, self, peer)

    # -- the port

    def receive_into(self, buffer: memoryview) -> int | None:
        if self._error is not None:
            raise self._error
        if not self._inbox:
            return 0 if self._eof else None
        count = min(len(buffer), len(self._inbox))
        buffer[:count] = self._inbox[:count]
        del self._inbox[:count]
        if self.peer is not None and self.peer._pipe is not None:
            self.peer._pipe.received(count, self._loop.time())
        return count

    def send(self, buffers: Buffers) -> int:
        if self._error is not None:
            raise self._error
        pipe = self._pipe
        if pipe is None or self._closed:
            raise BrokenPipeError(errno.EPIPE, "the stream is closed")
        data = b"".join(buffers)
        space = _WINDOW - pipe.in_flight
        data = data[: max(space, 0)]
        if data:
            self._send_segments(pipe, data)
        return len(data)

    def _send_segments(self, pipe: _Pipe, data: bytes) -> None:
        """Send the data, sometimes in two segments."""
        now, dice = self._loop.time(), self._network.dice
        if len(data) > 1 and dice.random() < 0.1:
            split = dice.randrange(1, len(data))
            pipe.send(data[:split], now)
            data = data[split:]
        pipe.send(data, now)

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        self._check_readable()

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        self.check_writable()

    def peer_is_gone(self) -> bool:
        return self._eof or self._error is not None

    def close(self) -> None:
        self.end(_RST if self._inbox else _FIN)

    # -- the kernel

    def end(self, how: bytes) -> None:
        if not self._closed:
            if self._pipe is not None and self._error is None:
                self._pipe.send(how, self._loop.time())
            self._shut()

    def forget(self) -> None:
        """Drop the stream: its machine died, without a packet to the peer."""
        self.forgotten = True
        self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._on_readable = self._on_writable = None
        self._network.closed(self)

    def lose(self, error: OSError) -> None:
        """Break the connection. Its user learns of it with the next call."""
        if self._closed or self._error is not None:
            return
        self._error = error
        self._inbox.clear()
        self._network.closed(self)
        self._check_readable()
        self.check_writable()

    def ended(self) -> None:
        self._eof = True
        self._check_readable()

    def take(self, data: bytes) -> bool:
        """Receive data. Return False if the stream is closed."""
        if self._closed or self._error is not None:
            return False
        self._inbox += data
        self._check_readable()
        return True

    def _readable(self) -> bool:
        return bool(self._inbox) or self._eof or self._error is not None

    def _check_readable(self) -> None:
        if self._on_readable is not None and not self._read_due and self._readable():
            self._read_due = True
            self._loop.call_soon(self._fire_readable)

    def _fire_readable(self) -> None:
        self._read_due = False
        if self._on_readable is not None and self._readable():
            self._on_readable()
            self._check_readable()

    @property
    def waits_for_space(self) -> bool:
        return self._on_writable is not None

    def check_writable(self) -> None:
        if self._on_writable is not None and not self._write_due and self._writable():
            self._write_due = True
            self._loop.call_soon(self._fire_writable)

    def _writable(self) -> bool:
        return self._error is not None or (
            self._pipe is not None and self._pipe.in_flight < _WINDOW
        )

    def _fire_writable(self) -> None:
        self._write_due = False
        if self._on_writable is not None and self._writable():
            self._on_writable()
            self.check_writable()
