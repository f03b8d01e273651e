"""A TCP proxy that passes bytes on as they are and can cut, refuse and swallow: a network between a client and a server."""

from __future__ import annotations

import socket

from support.proxy import CHUNK, RecordingProxy


class TcpProxy(RecordingProxy):
    """``cut`` breaks what is open; while ``away`` is set new connections are closed at once; ``hold`` keeps answers back."""

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
