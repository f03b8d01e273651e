"""ZooKeeper servers, single or as an ensemble, as child processes on this machine."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.client.errors import ClientError
from millstream.client.java import find_java
from millstream.local.foreground import lock_directory
from millstream.local.process import LocalProcess, ProcessFailed
from millstream.local.zookeeper_jars import find_jars

SERVER = "a ZooKeeper server"
CONFIG_FILE = "zoo.cfg"
HOST = "127.0.0.1"
DEFAULT_PORT = 2181
HEAP = "256m"
# Short, because sessions are checked once per tick: a session of 6 s expires within 6.5 s, not 8 s.
TICK_MS = 500
# Limits in ticks for the members of an ensemble to agree, and for the silence of a follower.
INIT_TICKS, SYNC_TICKS = 20, 10
MIN_SESSION_TICKS = 2
MAX_SESSION_MS = 120_000
_ASK_TIMEOUT_S = 1.0

_CONFIG = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
tickTime={tick}
initLimit={init}
syncLimit={sync}
minSessionTimeout={shortest}
maxSessionTimeout={longest}
maxClientCnxns=0
4lw.commands.whitelist=srvr,ruok,mntr,conf
admin.enableServer=false
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n%throwable{2}
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


class ZooKeeperFailed(ProcessFailed):
    """The server exited early, or was not ready or stopped in time; includes its last output."""


@dataclass(frozen=True, slots=True)
class Member:
    """A server of an ensemble: its ports for clients and for the other servers."""

    node_id: int
    port: int
    peer_port: int
    election_port: int


class LocalZooKeeper(LocalProcess):
    """A server, alone or as a member of ``ensemble``, which lists all members including itself.

    It is ready when it serves clients.
    """

    title = "ZooKeeper server"
    failure = ZooKeeperFailed

    def __init__(
        self,
        directory: str | Path,
        port: int = 0,
        *,
        node_id: int = 1,
        ensemble: Sequence[Member] = (),
        tick_ms: int = TICK_MS,
    ) -> None:
        super().__init__(directory, "zookeeper.log")
        self.host = HOST
        self.port = port or free_ports(1)[0]
        self.node_id = node_id
        self.ensemble = tuple(ensemble)
        self.is_member = bool(ensemble)
        self.tick_ms = tick_ms
        self.data_dir = self.directory / "data"

    @property
    def address(self) -> str:
        """The address for clients: ``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    def spawn(self, *, keep_open: Sequence[int] = ()) -> None:
        if not self.is_member:
            refuse_member_alone(self.directory)
        lock = lock_directory(self.directory, SERVER)
        try:
            self._write_files()
            # The server itself holds the lock, because it may outlive a killed parent for a moment.
            super().spawn(keep_open=(*keep_open, lock))
        finally:
            os.close(lock)

    def _write_files(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.directory / CONFIG_FILE).write_text(self._config())
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        if self.is_member:
            (self.data_dir / "myid").write_text(f"{self.node_id}\n")

    def _config(self) -> str:
        config = _CONFIG.format(
            data=self.data_dir.resolve(),
            host=self.host,
            port=self.port,
            tick=self.tick_ms,
            init=INIT_TICKS,
            sync=SYNC_TICKS,
            shortest=MIN_SESSION_TICKS * self.tick_ms,
            longest=MAX_SESSION_MS,
        )
        return config + "".join(
            f"server.{member.node_id}={self.host}:{member.peer_port}:{member.election_port}\n"
            for member in self.ensemble
        )

    def command(self) -> list[str]:
        directory = self.directory.resolve()
        return [
            str(find_java("ZooKeeper").executable),
            f"-Xmx{HEAP}",
            # Optimize for startup time, not for throughput: it holds only metadata.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            os.pathsep.join(str(jar) for jar in find_jars()),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(directory / CONFIG_FILE),
        ]

    def is_ready(self) -> bool:
        return server_mode(self.host, self.port) is not None


def has_tree(directory: Path) -> bool:
    """Return whether the server of this directory has ever written data."""
    return (directory / "data" / "version-2").exists()


def refuse_member_alone(directory: Path, *, others_run: bool = False) -> None:
    """Raise ClientError if the directory belongs to a member of an ensemble.

    Alone it would serve its own, possibly outdated data, next to an ensemble that continued without
    it.
    """
    try:
        lines = (directory / CONFIG_FILE).read_text().splitlines()
    except FileNotFoundError:
        lines = []
    count = sum(line.startswith("server.") for line in lines)
    if not count and not (directory / "data" / "myid").exists():
        return
    cluster = shlex.quote(os.path.relpath(directory.parent))
    if others_run:
        hint = f"start it with `millstream up --start {directory.name} --data {cluster}`"
    else:
        several = f" --zookeepers {count}" if count else ""
        hint = f"start the whole ensemble with `millstream up --data {cluster}{several}`, or choose another --data"
    raise ClientError(
        f"{directory} belongs to a member of an ensemble, which must not run alone", hint=hint
    )


def server_mode(host: str, port: int, timeout_s: float = _ASK_TIMEOUT_S) -> str | None:
    """Return standalone, leader or follower, or None without a response or a quorum."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as peer:
            peer.settimeout(timeout_s)
            peer.sendall(b"srvr")
            answer = b""
            while more := peer.recv(4096):
                answer += more
    except OSError:
        return None
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ").strip()
    return None


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def members(ports: Sequence[int]) -> list[Member]:
    """Return an ensemble from its ports: client, peer and election port of each server."""
    triples = zip(ports[0::3], ports[1::3], ports[2::3], strict=True)
    return [Member(number, *triple) for number, triple in enumerate(triples, 1)]


def local_ensemble(
    directory: str | Path, ensemble: Sequence[Member], *, tick_ms: int = TICK_MS
) -> list[LocalZooKeeper]:
    """Return the servers of an ensemble, not started, each with its directory.

    A single server is not an ensemble.
    """
    together = ensemble if len(ensemble) > 1 else ()
    return [
        LocalZooKeeper(
            Path(directory, f"zookeeper-{member.node_id}"),
            member.port,
            node_id=member.node_id,
            ensemble=together,
            tick_ms=tick_ms,
        )
        for member in ensemble
    ]


def connect_string(servers: Sequence[LocalZooKeeper]) -> str:
    """Return ``zookeeper.connect`` for these servers."""
    return ",".join(server.address for server in servers)
