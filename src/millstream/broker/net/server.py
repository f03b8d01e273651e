"""The listeners of a broker, its connections, and their limits."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import sys
from collections import Counter

from millstream.broker.net.buffers import BufferPool
from millstream.broker.net.connection import Connection, Handle
from millstream.broker.net.listeners import Endpoint, ListenerSpec
from millstream.broker.net.request_memory import RequestMemory
from millstream.broker.net.responses import CloseConnection, Outcome
from millstream.core.config import BrokerConfig
from millstream.core.settings import SettingError
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.network import Listener, Network, Stream

logger = logging.getLogger("millstream.server")

_DRAIN_S = 3.0
_SWEEP_S = 30.0
# Descriptors that connections must leave free. The log keeps at most 1024 segments open.
_RESERVED_FILES = 1500


class Server:
    """Accepts connections, and passes their frames to the handler given to ``start``."""

    def __init__(self, config: BrokerConfig, network: Network, memory: RequestMemory) -> None:
        self._config = config
        self._network = network
        self._handle: Handle = _not_started
        self._pool = BufferPool()
        self._memory = memory
        self._listeners: list[Listener] = []
        # In order of arrival.
        self._connections: dict[Connection, None] = {}
        self._per_ip: Counter[str] = Counter()
        self._drained: asyncio.Future[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._max_descriptor = _descriptors_for_connections()
        self._rejected = 0
        self._rate_limited = RateLimitedLog(logger)
        self._next_report_at = 0.0

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def bind(self, specs: list[ListenerSpec]) -> list[Endpoint]:
        """Open the listeners and return their endpoints. Nothing is accepted yet."""
        endpoints = []
        for spec in specs:
            listener = self._open(spec)
            self._listeners.append(listener)
            endpoints.append(Endpoint(spec.name, spec.host, listener.port))
        return endpoints

    def _open(self, spec: ListenerSpec) -> Listener:
        config = self._config
        try:
            return self._network.listen(
                spec.host,
                spec.port,
                lambda stream: self._on_accept(stream, spec.name),
                backlog=max(config.integer("socket.listen.backlog.size"), 1),
                send_buffer=_explicit(config, "socket.send.buffer.bytes"),
                receive_buffer=_explicit(config, "socket.receive.buffer.bytes"),
            )
        except OSError as error:
            raise SettingError(
                f"cannot listen on {spec.host}:{spec.port} ({error.strerror or error}); "
                "choose another with --set listeners=PLAINTEXT://HOST:PORT, or port 0 for any free port"
            ) from None

    def start(self, handle: Handle) -> None:
        self._handle = handle
        for listener in self._listeners:
            listener.start()
        self._sweep_later()

    def _on_accept(self, stream: Stream, listener: str) -> None:
        if not self._admits(stream):
            stream.close()
            return
        self._per_ip[stream.peer_host] += 1
        connection = Connection(
            stream,
            self._handle,
            self._pool,
            listener=listener,
            max_request_bytes=self._config.integer("socket.request.max.bytes"),
            max_in_flight=self._config.integer("queued.max.requests"),
            on_close=self._on_close,
            memory=self._memory,
            rate_limited=self._rate_limited,
        )
        self._connections[connection] = None

    def _admits(self, stream: Stream) -> bool:
        host = stream.peer_host
        if stream.descriptor >= self._max_descriptor:
            return self._reject(host, "too many files are open (raise 'ulimit -n')")
        if len(self._connections) >= self._config.integer("max.connections"):
            return self._reject(host, "max.connections is reached")
        if self._per_ip[host] >= self._ip_limit(host):
            return self._reject(host, "max.connections.per.ip is reached")
        return True

    def _reject(self, host: str, reason: str) -> bool:
        """Count a rejected connection. Log at most once a second."""
        self._rejected += 1
        now = asyncio.get_running_loop().time()
        if now >= self._next_report_at:
            logger.warning(
                "rejected %d connections, the last from %s: %s", self._rejected, host, reason
            )
            self._rejected, self._next_report_at = 0, now + 1.0
        return False

    def _ip_limit(self, host: str) -> int:
        for entry in str(self._config.get("max.connections.per.ip.overrides")).split(","):
            address, _, limit = entry.rpartition(":")
            if address == host and limit.isdigit():
                return int(limit)
        return self._config.integer("max.connections.per.ip")

    def _on_close(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        host = connection.stream.peer_host
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        if self._drained is not None and not self._connections and not self._drained.done():
            self._drained.set_result(None)

    # ---- idle connections ----

    def _sweep_later(self) -> None:
        idle_s = self._idle_limit_s()
        delay_s = min(max(idle_s / 4, 0.05), _SWEEP_S)
        self._sweeper = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _idle_limit_s(self) -> float:
        idle_ms = self._config.integer("connections.max.idle.ms")
        return idle_ms / 1000 if idle_ms > 0 else math.inf

    def _sweep(self) -> None:
        """Close connections that are idle for too long, or whose client has disconnected."""
        oldest = asyncio.get_running_loop().time() - self._idle_limit_s()
        silent = [c for c in self._connections if c.active_at < oldest and not c.owes_response]
        for connection in (*silent, *(c for c in self._connections if c.has_unnoticed_disconnect)):
            connection.close()
        self._sweep_later()

    # ---- shutdown ----

    async def close(self) -> None:
        """Stop accepting, send the pending responses, then close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=_DRAIN_S)
        self.drop_connections()

    def abort(self) -> None:
        """Stop accepting, and close every connection without sending pending responses."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for listener in self._listeners:
            listener.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()


def _not_started(connection: Connection, frame: memoryview) -> Outcome:
    raise CloseConnection("the broker is starting")


def _descriptors_for_connections() -> int:
    """Return the first descriptor number that is not used for a connection.

    Segments, imports and child processes need descriptors too, even with many clients.
    """
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(_RESERVED_FILES, soft // 2)


def _explicit(config: BrokerConfig, name: str) -> int:
    """Return a buffer size only if the user set it. The kernel's tuning beats Kafka's default."""
    return config.integer(name) if name in config.static else -1
