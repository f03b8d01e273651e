"""The processes of a run: three ZooKeeper servers and three brokers, each on a host of the lab, and
the clients.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.local.broker import LocalBroker
from millstream.local.cluster import cluster_settings
from millstream.local.process import child_environment
from millstream.local.zookeeper import LocalZooKeeper, free_ports
from nemesis.lab import Host, Lab, small_disk

# What the clients write in a minute of a quick machine, twice; and room to begin with.
_DISK_MB, _DISK_MB_PER_MINUTE = 768, 100
_BALLAST = "ballast"
_TESTS = Path(__file__).resolve().parents[1]

# Short sessions and lags: more elections in a minute. What may be lost does not depend on them.
SETTINGS: dict[str, object] = {
    **cluster_settings(3),
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "zookeeper.session.timeout.ms": 3_000,
    "replica.lag.time.max.ms": 4_000,
    "replica.fetch.backoff.ms": 200,
    "replica.socket.timeout.ms": 4_000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    # A new coordinator begins all sessions anew: with 45 s nobody who is gone would ever be missed
    # here.
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 4_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    "leader.imbalance.check.interval.seconds": 10,
    "log.flush.offset.checkpoint.interval.ms": 3_000,
    "auto.create.topics.enable": "false",
    "log.retention.ms": -1,
}


class LabZooKeeper(LocalZooKeeper):
    """A member of an ensemble whose members are on different hosts."""

    def __init__(
        self, directory: Path, host: Host, port: int, node_id: int, servers: Mapping[int, str]
    ) -> None:
        super().__init__(directory, port, node_id=node_id)
        self.host = host.address
        self.on = host
        self._servers = servers
        self.is_member = True

    def _config(self) -> str:
        return super()._config() + "".join(
            f"server.{n}={place}\n" for n, place in self._servers.items()
        )

    def command(self) -> list[str]:
        return [*self.on.prefix, *super().command()]


class LabBroker(LocalBroker):
    """A broker on a host. ``fillable``: its disk is small and its own."""

    def __init__(
        self,
        directory: Path,
        host: Host,
        port: int,
        settings: Mapping[str, object],
        *,
        disk_mb: int | None,
    ) -> None:
        super().__init__(directory, settings, port=port)
        self.host = host.address
        self.on = host
        self.node = int(str(settings["node.id"]))
        self.fillable = disk_mb is not None and small_disk(self.data_dir, disk_mb)

    def command(self) -> list[str]:
        return [*self.on.prefix, *super().command()]

    @property
    def is_full(self) -> bool:
        """By what it keeps: nothing else can be tried on it."""
        return shutil.disk_usage(self.data_dir).free < 1 << 20

    def fill(self) -> None:
        """Not one byte is left."""
        with (self.data_dir.parent / "data" / _BALLAST).open("wb", buffering=0) as ballast:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        ballast.write(b"\0" * size)
                except OSError:
                    continue

    def drain(self) -> None:
        (self.data_dir / _BALLAST).unlink(missing_ok=True)


class Fleet:
    """ZooKeeper and the brokers."""

    def __init__(self, directory: Path, lab: Lab, seconds: float) -> None:
        self.directory = directory
        self.lab = lab
        self._disk_mb = _DISK_MB + int(seconds / 60 * _DISK_MB_PER_MINUTE)
        hosts = [lab.host(f"zookeeper-{number}") for number in (1, 2, 3)]
        ports = free_ports(12)
        peers = iter(ports[:6])
        servers = {
            n: f"{host.address}:{next(peers)}:{next(peers)}" for n, host in enumerate(hosts, 1)
        }
        self.zookeepers = [
            LabZooKeeper(directory / host.name, host, ports[5 + n], n, servers)
            for n, host in enumerate(hosts, 1)
        ]
        self.connect = ",".join(server.address for server in self.zookeepers)
        self.brokers = [self._broker(node, ports[9 + node]) for node in range(3)]

    def _broker(self, node: int, port: int) -> LabBroker:
        host = self.lab.host(f"broker-{node}")
        settings = SETTINGS | {"node.id": node, "zookeeper.connect": f"{self.connect}/chaos"}
        # The first on the machine's own disk: both kinds of file system are read and written.
        return LabBroker(
            self.directory / host.name,
            host,
            port,
            settings,
            disk_mb=self._disk_mb if node else None,
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        for part in (self.zookeepers, self.brokers):
            for process in part:
                process.spawn()
            for process in part:
                process.wait_ready(90)

    def stop(self) -> None:
        """In good order, so that files are complete."""
        for broker in self.brokers:
            if broker.running:
                broker.stop()

    def kill(self) -> None:
        for process in (*self.brokers, *self.zookeepers):
            if process.running:
                process.kill()

    def logs(self) -> str:
        return "\n".join(broker.log_file.read_text(errors="replace") for broker in self.brokers)


class Slot:
    """A place for a client: whoever is in it and ends is followed by another, with a new name."""

    def __init__(
        self, clients: Clients, role: str, number: int, keys: Sequence[str], more: dict[str, Any]
    ) -> None:
        self.role = role
        self.name = f"{role}-{number}"
        self._clients = clients
        self._options = {"role": role, "slot": number, "keys": list(keys), **more}
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def keep_alive(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            self.ended()
        if self.process is None:
            self._start()

    def ended(self) -> None:
        """The client is gone: how?"""
        assert self.process is not None
        if self.process.returncode == -signal.SIGALRM:
            self._clients.activity["clients that hung"] += 1
        elif self.process.returncode == 1:
            self._clients.broken.append(self.name)
        self.process = None

    def _start(self) -> None:
        self._starts += 1
        directory = self._clients.directory
        name = f"{self.name}.{self._starts}"
        options = {
            **self._options,
            "name": name,
            "seed": self._clients.dice.getrandbits(40),
            "bootstrap": self._clients.bootstrap,
            "patience_s": self._clients.patience_s,
            "history": str(directory / f"{self.name}.jsonl"),
        }
        environment = child_environment()
        environment["PYTHONPATH"] += f"{os.pathsep}{_TESTS}"
        with (directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nemesis.client", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        self._clients.activity["client starts"] += 1

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class Clients:
    """All clients of a run."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        seed: int,
        activity: Counter[str],
        *,
        patience_s: float,
    ) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.dice = random.Random(seed)
        self.activity = activity
        self.patience_s = patience_s
        self.broken: list[str] = []
        self.slots: list[Slot] = []
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, role: str, count: int, keys: Sequence[str], **more: Any) -> None:
        self.slots += [Slot(self, role, number, keys, more) for number in range(count)]

    def keep_alive(self) -> None:
        for slot in self.slots:
            slot.keep_alive()

    def stop(self, *roles: str) -> None:
        """Asks those of these roles to end; what they do not finish in time stays unknown."""
        stopping = [slot for slot in self.slots if slot.role in roles]
        self.slots = [slot for slot in self.slots if slot.role not in roles]
        for slot in stopping:
            slot.signal(signal.SIGCONT)
            slot.signal(signal.SIGTERM)
        for slot in stopping:
            if slot.process is not None:
                try:
                    slot.process.wait(2.5 * self.patience_s)
                except subprocess.TimeoutExpired:
                    slot.process.send_signal(signal.SIGALRM)
                    slot.process.wait()
                slot.ended()

    def histories(self) -> list[Path]:
        return sorted(self.directory.glob("*.jsonl"))
