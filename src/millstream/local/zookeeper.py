"""A real ZooKeeper server, or an ensemble of them, as child processes on this machine."""

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
# A short tick: sessions are checked once in a tick, so one of 6 s ends within 6.5 s and not within 8.
TICK_MS = 500
# How long members of an ensemble may take to agree, and a follower to stay silent, in ticks.
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
    """The server ended before it was ready, or did not become ready or stop in time; carries its last output."""


@dataclass(frozen=True, slots=True)
class Member:
    """A server of an ensemble: where it serves clients, and where the others reach it."""

    node_id: int
    port: int
    peer_port: int
    election_port: int


class LocalZooKeeper(LocalProcess):
    """One server; with ``ensemble`` (all members, itself among them) one of several. Ready means: it serves clients."""

    what = "ZooKeeper server"
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
        """What a client is given: ``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    def spawn(self, *, keep_open: Sequence[int] = ()) -> None:
        if not self.is_member:
            refuse_member_alone(self.directory)
        lock = lock_directory(self.directory, SERVER)
        try:
            self._write_files()
            # The server itself has the directory locked: whoever started it may be killed, and the server be there a moment longer.
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
            f"server.{one.node_id}={self.host}:{one.peer_port}:{one.election_port}\n" for one in self.ensemble
        )

    def command(self) -> list[str]:
        directory = self.directory.resolve()
        return [
            str(find_java("ZooKeeper").executable),
            f"-Xmx{HEAP}",
            # Quick to start rather than quick for hours: it holds metadata.
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
    """Whether the server of this directory has ever written anything."""
    return (directory / "data" / "version-2").exists()


def refuse_member_alone(directory: Path, *, others_run: bool = False) -> None:
    """ClientError for the directory of a member of an ensemble: by itself it would take what it has for all there is, and serve that beside the
    others, who may have gone on without it."""
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
        hint = f"start all of it with `millstream up --data {cluster}{several}`, or name another --data"
    raise ClientError(f"{directory} is that of a member of an ensemble, which must not run alone", hint=hint)


def server_mode(host: str, port: int, timeout_s: float = _ASK_TIMEOUT_S) -> str | None:
    """standalone, leader or follower; None for one that does not answer, or has no quorum and serves nobody."""
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
    """Ports that nobody uses now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def members(ports: Sequence[int]) -> list[Member]:
    """An ensemble from its ports: for each server that of its clients, of its peers, and of elections."""
    triples = zip(ports[0::3], ports[1::3], ports[2::3], strict=True)
    return [Member(number, *triple) for number, triple in enumerate(triples, 1)]


def local_ensemble(
    directory: str | Path, ensemble: Sequence[Member], *, tick_ms: int = TICK_MS
) -> list[LocalZooKeeper]:
    """The servers of an ensemble, not started, each in a directory of its own; one alone is no ensemble."""
    together = ensemble if len(ensemble) > 1 else ()
    return [
        LocalZooKeeper(
            Path(directory, f"zookeeper-{one.node_id}"),
            one.port,
            node_id=one.node_id,
            ensemble=together,
            tick_ms=tick_ms,
        )
        for one in ensemble
    ]


def connect_string(servers: Sequence[LocalZooKeeper]) -> str:
    """``zookeeper.connect`` of these servers."""
    return ",".join(server.address for server in servers)
