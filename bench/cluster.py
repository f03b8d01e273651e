"""A running cluster from outside: its processes (`cluster.json`) and its metadata."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.processes import ROOT, BenchFailed, environment
from bench.running import Broker

# A broker id that no broker has.
OBSERVER = 2_000_000_000
POLL_S = 0.1
# No log: the measurements make brokers fail.
QUIET: dict[str, Any] = {"log_level": 0}


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in the metadata."""

    topic: str
    index: int
    leader: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


class Cluster:
    """The brokers of a peer that runs as `millstream up`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._admin: Any = None

    def _file(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.broker.data / "cluster.json").read_text())
        return content

    def addresses(self, *, without: int = -1) -> str:
        rows = [row for row in self._file()["brokers"] if row["pid"] and row["node_id"] != without]
        return ",".join(f"{row['host']}:{row['port']}" for row in rows)

    def address(self, node: int) -> tuple[str, int]:
        (row,) = [row for row in self._file()["brokers"] if row["node_id"] == node]
        return row["host"], row["port"]

    def pid(self, node: int) -> int:
        (pid,) = [row["pid"] for row in self._file()["brokers"] if row["node_id"] == node]
        return int(pid)

    def kill(self, node: int) -> None:
        os.kill(self.pid(node), signal.SIGKILL)

    def stop(self, node: int) -> None:
        """Request a clean shutdown; the broker exits after it has handed over its partitions."""
        os.kill(self.pid(node), signal.SIGTERM)

    def start(self, node: int) -> None:
        command = [
            sys.executable,
            "-m",
            "millstream",
            "up",
            "--data",
            str(self.broker.data),
            "--start",
        ]
        self.wait(lambda: not self._runs(node), "the broker to exit", 30)
        done = subprocess.run(
            [*command, str(node)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment({}),
            check=False,
        )
        if done.returncode:
            raise BenchFailed(f"broker {node} did not restart: {done.stderr.strip()}")

    def _runs(self, node: int) -> bool:
        (state,) = [row["state"] for row in self._file()["brokers"] if row["node_id"] == node]
        return state not in ("dead", "stopped")

    @contextmanager
    def failures_explained(self) -> Iterator[None]:
        """Add the last errors in the brokers' logs to a client's error."""
        from millstream.client.errors import ClientError

        try:
            yield
        except ClientError as error:
            raise BenchFailed(f"{error}; {self._last_errors()}") from None

    def prefer(self) -> None:
        """Elect the preferred leaders, so that all brokers lead equally many partitions."""
        from millstream.client.admin.client import Admin

        with self.failures_explained(), Admin(self.addresses(), timeout_s=60) as admin:
            admin.reassignments.elect_leaders()
        self.wait(
            lambda: all(row.leader == row.replicas[0] for row in self.partitions()),
            "preferred leaders",
            30,
        )

    def _last_errors(self) -> str:
        lines = [
            line
            for log in sorted(self.broker.data.glob("broker-*/broker.log"))
            for line in log.read_text(errors="replace").splitlines()
            if " ERROR " in line or "Error:" in line
        ]
        return "; ".join(lines[-3:]) or "no broker logged an error"

    # ---- partitions ----

    def connect(self, *, without: int = -1) -> None:
        """Read metadata from all brokers, without one, from now on."""
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": self.addresses(without=without)} | QUIET)

    def _metadata(self) -> Any:
        from confluent_kafka import KafkaException

        if self._admin is None:
            self.connect()
        try:
            return self._admin.list_topics(timeout=10)
        except KafkaException:
            return None

    def controller(self) -> int:
        metadata = self._metadata()
        return -1 if metadata is None else int(metadata.controller_id)

    def partitions(self) -> list[Partition]:
        metadata = self._metadata()
        topics = {} if metadata is None else metadata.topics
        return [
            Partition(
                name,
                partition.id,
                partition.leader,
                tuple(partition.isrs),
                tuple(partition.replicas),
            )
            for name, topic in topics.items()
            if not name.startswith("__")
            for partition in topic.partitions.values()
        ]

    def wait_led(
        self, count: int, *, without: int = -1, in_sync: int = 1, timeout_s: float = 120
    ) -> None:
        """Wait until ``count`` partitions have a leader other than ``without``, and enough in-sync
        replicas.
        """

        def all_led() -> bool:
            rows = self.partitions()
            return len(rows) >= count and all(
                row.leader not in (-1, without) and len(row.isr) >= in_sync for row in rows
            )

        self.wait(all_led, f"{count} partitions with a leader and {in_sync} in sync", timeout_s)

    @staticmethod
    def wait(condition: Callable[[], bool], event: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise BenchFailed(f"waited {timeout_s:.0f} s for {event}")
            time.sleep(POLL_S)

    def write_everywhere(self, partitions: Sequence[Partition], *, without: int = -1) -> None:
        """Write one message to each partition, acknowledged by all in-sync replicas."""
        from confluent_kafka import Producer

        failed: list[str] = []
        producer = Producer(
            {"bootstrap.servers": self.addresses(without=without), "acks": "all", "linger.ms": 5}
            | QUIET
        )
        for row in partitions:
            producer.produce(
                row.topic,
                b"x",
                partition=row.index,
                on_delivery=lambda e, _: failed.append(str(e)) if e else None,
            )
        if producer.flush(60) or failed:
            raise BenchFailed(f"not every partition could be written: {failed[:1]}")

    # ---- coordination ----

    def zookeeper_writes(self) -> int:
        """Return ZooKeeper's number of transactions: the lower half of its last zxid."""
        (row,) = self._file()["zookeepers"]
        with socket.create_connection((row["host"], row["port"]), timeout=5) as sock:
            sock.sendall(b"srvr")
            response = b"".join(iter(lambda: sock.recv(4096), b"")).decode()
        (zxid,) = [line.split()[1] for line in response.splitlines() if line.startswith("Zxid:")]
        return int(zxid, 16) & 0xFFFFFFFF


@dataclass(slots=True)
class Received:
    """The bytes and nodes that came through the feed."""

    bytes: int = 0
    nodes: int = 0

    def add(self, more: "Received") -> None:
        self.bytes += more.bytes
        self.nodes += more.nodes


class Observer:
    """Follows the controller's feed like a broker, without being one."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, timeout=30)
        self._epoch, self._position = -1, -1

    def close(self) -> None:
        self._sock.close()

    def snapshot(self) -> Received:
        received, has_more = Received(), False
        while True:
            response = self._request(received, more_of_snapshot=has_more)
            has_more = response.more_follows
            if not has_more:
                self._position = response.position
                return received

    def changes(self) -> Received:
        """Read all changes up to now."""
        received = Received()
        while True:
            seen = self._position
            self._position = self._request(received).position
            if self._position == seen:
                return received

    def _request(self, received: Received, *, more_of_snapshot: bool = False) -> Any:
        from millstream.wire.messages.controller_feed import (
            ControllerFeedRequest,
            ControllerFeedResponse,
            nodes_of,
        )

        request = ControllerFeedRequest(
            broker_id=OBSERVER,
            controller_epoch=self._epoch,
            position=self._position,
            more_of_snapshot=more_of_snapshot,
        )
        # Request header 2: key 30000, version 0, correlation id, client id, no tags.
        body = struct.pack(">hhihB", 30_000, 0, 1, -1, 0) + request.encode(0)
        self._sock.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        response, _ = ControllerFeedResponse.decode(memoryview(frame), 0, 5)
        if response.error_code:
            raise BenchFailed(f"the feed was rejected with error {response.error_code}")
        self._epoch = response.controller_epoch
        if nodes := nodes_of(response):
            received.bytes += size + 4
            received.nodes += len(nodes)
        return response

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._sock.recv(min(size, 1 << 20))
            if not part:
                raise BenchFailed("the controller closed the feed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def topic_sizes(partitions: int, each: int) -> Iterator[tuple[str, int]]:
    """Yield topics of ``each`` partitions, ``partitions`` in total."""
    for start in range(0, partitions, each):
        yield f"bench-{start // each}", min(each, partitions - start)


def create_topics_of_sizes(cluster: Cluster, sizes: Mapping[str, int]) -> None:
    from bench.topics import create_topics

    by_size: dict[int, list[str]] = {}
    for name, size in sizes.items():
        by_size.setdefault(size, []).append(name)
    for size, names in by_size.items():
        create_topics(cluster.addresses(), names, size, {}, cluster.broker.peer.replication)
