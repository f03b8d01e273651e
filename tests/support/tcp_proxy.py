"""A TCP proxy that passes bytes on as they are and can cut, refuse and swallow: a network between a
client and a server.
"""

from __future__ import annotations

import socket

from support.proxy import CHUNK, FrameWatcher, RecordingProxy


class TcpProxy(RecordingProxy):
    """``cut`` breaks what is open; while ``away`` is set new connections are closed at once;
    ``hold`` keeps answers back.
    """

    away = False

    def _connect(self, client: socket.socket) -> None:
        if self.away:
            client.close()
        else:
            super()._connect(client)

    def _requests(self, client: socket.socket, server: socket.socket, number: int) -> None:
        while data := client.recv(CHUNK):
            server.sendall(data)

    def leave(self) -> None:
        """The network is gone, until ``back``."""
        self.away = True
        self.cut()

    def back(self) -> None:
        self.away = False


class LossyProxy(TcpProxy):
    """Passes requests of one API on and drops all answers on their connections, while ``lost_api``
    is set.
    """

    def __init__(self, upstream: tuple[str, int] | None = None) -> None:
        self.lost_api: int | None = None
        self._muted: set[socket.socket] = set()
        super().__init__(upstream)

    def _requests(self, client: socket.socket, server: socket.socket, number: int) -> None:
        watcher = FrameWatcher(number)
        while data := client.recv(CHUNK):
            if self.lost_api in {call.api_key for call in watcher.feed(data)}:
                self._muted.add(server)
            server.sendall(data)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        while data := server.recv(CHUNK):
            if server not in self._muted:
                client.sendall(data)
        self._muted.discard(server)
