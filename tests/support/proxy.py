"""A TCP proxy that stands between clients and a broker and notes which API, in which version, each
client used.

Give the broker the proxy's address as ``advertised.listeners``, so that clients come back through
it after Metadata::

    with RecordingProxy() as proxy:
        broker = start({"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap}"})
        proxy.upstream = ("127.0.0.1", broker_port)
        ...
        assert proxy.versions("my-client") [PRODUCE] == {13}

Bytes pass unchanged. ``cut()`` closes every open connection; ``hold()`` and ``resume()`` stop and
start the flow of answers, so that a test can see what a client does with a broker that has gone
quiet.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import defaultdict
from types import TracebackType
from typing import NamedTuple

CHUNK = 1 << 18
HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
PREFIX = 4 + HEADER.size


class Call(NamedTuple):
    """One request, as its header told it."""

    connection: int
    client_id: str
    api_key: int
    api_version: int


class FrameWatcher:
    """Follows a stream of requests and yields the header of each, keeping nothing else of it."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._skip = 0
        self._head = bytearray()

    def feed(self, data: bytes) -> list[Call]:
        calls: list[Call] = []
        position = 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
                continue
            self._head += data[position : position + 1]
            position += 1
            if call := self._complete():
                calls.append(call)
        return calls

    def _complete(self) -> Call | None:
        head = self._head
        if len(head) < PREFIX:
            return None
        api_key, version, _, id_length = HEADER.unpack_from(head, 4)
        id_length = max(id_length, 0)
        if len(head) < PREFIX + id_length:
            return None
        (size,) = struct.unpack_from(">i", head)
        client_id = head[PREFIX : PREFIX + id_length].decode(errors="replace")
        self._skip = max(size + 4 - len(head), 0)
        self._head = bytearray()
        return Call(self._connection, client_id, api_key, version)


class RecordingProxy:
    """Listens on a free port of its own; every connection is passed on to ``upstream``."""

    def __init__(self, upstream: tuple[str, int] | None = None) -> None:
        self.upstream = upstream
        self.calls: list[Call] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._count = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def versions(self, client_id: str) -> dict[int, set[int]]:
        """API key -> the versions that a client with this id used."""
        used: dict[int, set[int]] = defaultdict(set)
        for call in list(self.calls):
            if call.client_id == client_id:
                used[call.api_key].add(call.api_version)
        return dict(used)

    def hold(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Close every connection that is open now; new ones are accepted."""
        with self._lock:
            victims = list(self._open)
        for end in victims:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self.resume()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            if self.upstream is None:
                raise OSError("no upstream yet")
            server = socket.create_connection(self.upstream)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
            self._count += 1
            number = self._count
        left = [2]
        for job in (
            lambda: self._requests(client, server, number),
            lambda: self._answers(server, client),
        ):
            threading.Thread(
                target=self._run, args=(job, (client, server), left), daemon=True
            ).start()

    def _run(self, job: object, ends: tuple[socket.socket, socket.socket], left: list[int]) -> None:
        """One direction of a connection; the second to end closes both sockets."""
        with contextlib.suppress(OSError):
            job()  # type: ignore[operator]
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            left[0] -= 1
            if left[0]:
                return
            self._open -= set(ends)
        for end in ends:
            end.close()

    def _requests(self, client: socket.socket, server: socket.socket, number: int) -> None:
        watcher = FrameWatcher(number)
        while data := client.recv(CHUNK):
            self.calls += watcher.feed(data)
            server.sendall(data)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        while data := server.recv(CHUNK):
            self._flowing.wait()
            client.sendall(data)

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
