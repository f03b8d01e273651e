"""Probes whether the servers of a local cluster answer."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millstream.local.cluster_file import ZOOKEEPER, State
from millstream.local.node import LocalNode
from millstream.local.zookeeper import server_mode

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0

# ApiVersions, version 0, correlation id 1, no client id: the first request of any client.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def broker_answers(host: str, port: int, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Return whether a broker accepts a connection and answers ApiVersions."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as peer:
            peer.sendall(_API_VERSIONS)
            head = b""
            while len(head) < 10 and (more := peer.recv(10 - len(head))):
                head += more
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (1, 0)


class ProbeResult(NamedTuple):
    """Whether a server answers, and the mode of a ZooKeeper server."""

    answers: bool
    mode: str


class Probes:
    """Probes servers in threads, because a paused process must not delay the others."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="probe")

    def poll(self, node: LocalNode) -> ProbeResult | None:
        """Return the result of a probe that has finished; start one if it is due."""
        now_s = time.monotonic()
        if node.probe is None:
            starting = node.entry.state is State.STARTING
            if starting or now_s - node.probed_s >= PROBE_EVERY_S:
                node.probed_s = now_s
                node.probe = self._threads.submit(
                    _probe_server, node.kind, node.entry.host, node.entry.port
                )
        elif node.probe.done():
            mode, node.probe = node.probe.result(), None
            return ProbeResult(mode is not None, mode or "")
        return None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _probe_server(kind: str, host: str, port: int) -> str | None:
    if kind == ZOOKEEPER:
        return server_mode(host, port, PROBE_TIMEOUT_S)
    return "" if broker_answers(host, port) else None
