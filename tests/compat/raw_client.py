"""Requests as frames over a plain socket, built and read with the project's own message classes:
what no client would send.

``RawConnection.call`` sends one request and returns its answer; ``send`` and ``receive`` are the
halves, for pipelining. A connection that the broker closes raises ``Closed``, one that stays silent
``TimeoutError``.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from millstream.wire.apis import APIS, Api
from millstream.wire.schema import Struct

API: dict[str, Api] = {api.name: api for api in APIS}
API_VERSIONS_KEY = 18
TIMEOUT_S = 120.0


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class RawConnection:
    """One connection to ``host:port``. Correlation ids count up from 1."""

    def __init__(self, bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # ---- frames ----

    def send_frame(self, payload: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            raise Closed from None

    def receive(self) -> bytes:
        """The next answer without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                some = self.socket.recv(count - len(data))
            except ConnectionResetError:
                raise Closed from None
            if not some:
                raise Closed
            data += some
        return bytes(data)

    # ---- messages ----

    def header(
        self, key: int, version: int, *, flexible: bool, client_id: str | None = "raw"
    ) -> bytes:
        self._correlation_id += 1
        name = b"" if client_id is None else client_id.encode()
        length = -1 if client_id is None else len(name)
        fixed = struct.pack(">hhih", key, version, self._correlation_id, length)
        return fixed + name + (b"\0" if flexible else b"")

    def send(self, name: str, version: int, request: Struct) -> int:
        """Sends a request and returns its correlation id."""
        self.send_body(name, version, bytes(request.encode(version)))
        return self._correlation_id

    def send_body(self, name: str, version: int, body: bytes) -> None:
        api = API[name]
        self.send_frame(self.header(api.key, version, flexible=api.flexible(version)) + body)

    def call(self, name: str, version: int, request: Struct) -> Any:
        self.send(name, version, request)
        return read_answer(name, version, self.receive())


def read_answer(name: str, version: int, frame: bytes) -> Any:
    """The message in an answer; nothing may be left over."""
    api = API[name]
    start = 5 if api.flexible(version) and api.key != API_VERSIONS_KEY else 4
    message, end = api.response_class().decode(memoryview(frame), version, start)
    assert end == len(frame), f"{len(frame) - end} bytes after the {name} v{version} answer"
    return message


def correlation_id(frame: bytes) -> int:
    found: int = struct.unpack_from(">i", frame)[0]
    return found


def ask(bootstrap: str, name: str, version: int, request: Struct) -> Any:
    """One request on a connection of its own."""
    with RawConnection(bootstrap) as connection:
        return connection.call(name, version, request)
