"""Three nodes of Apache Kafka as one program (KRaft, each broker and controller).

`python -m bench.kafka_cluster --libs DIR --data DIR` prints `ready: HOST:PORT,HOST:PORT,HOST:PORT`
when all three are registered, and ends at SIGTERM or SIGINT. It then kills the nodes: their data is
not needed, and a controller that shuts down cleanly waits for the others.
"""

import argparse
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import keeper
from bench.model import load_peers

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAw"
NODES = (1, 2, 3)
READY_S = 150.0


def server_properties(node: int, ports: Sequence[int], data: Path) -> str:
    """Return the configuration of a node. ``ports`` has client ports, then controller ports."""
    client, controller = ports[node - 1], ports[len(NODES) + node - 1]
    voters = ",".join(f"{n}@127.0.0.1:{ports[len(NODES) + n - 1]}" for n in NODES)
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": voters,
        "log.dirs": data,
        "min.insync.replicas": 2,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def java(libs: str, properties: Path) -> list[str]:
    """Return the command of the peer `kafka`, so that each node runs as a single broker does."""
    peer = load_peers()["kafka"]
    words = {
        "{KAFKA_LIBS}": libs,
        "{heap}": peer.words["heap"],
        "{work}/server.properties": str(properties),
    }
    command = []
    for part in peer.command:
        for word, value in words.items():
            part = part.replace(word, value)
        command.append(part)
    return command


class Nodes:
    """The processes of the cluster."""

    def __init__(self, libs: str, data: Path, overrides: Sequence[str]) -> None:
        self.libs, self.data = libs, data
        self.overrides = [word for setting in overrides for word in ("--override", setting)]
        self.ports = _free_ports(2 * len(NODES))
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports[: len(NODES)])

    def start(self) -> None:
        for node in NODES:
            home = self.data / f"node-{node}"
            home.mkdir(parents=True, exist_ok=True)
            properties = home / "server.properties"
            properties.write_text(server_properties(node, self.ports, home / "log"))
            self._format(properties)
            with (home / "output").open("wb") as output:
                command = [*java(self.libs, properties), *self.overrides]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
                self.processes.append(process)

    def _format(self, properties: Path) -> None:
        tool = ["java", "-cp", f"{self.libs}/*", "kafka.tools.StorageTool", "format"]
        command = [
            *tool,
            "--cluster-id",
            CLUSTER_ID,
            "--config",
            str(properties),
            "--ignore-formatted",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def wait_ready(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self.processes):
                raise SystemExit("a node ended while the cluster was starting")
            try:
                if len(admin.list_topics(timeout=2).brokers) == len(NODES):
                    return
            except KafkaException:
                pass
            time.sleep(0.05)
        raise SystemExit(f"the nodes did not find each other within {READY_S:.0f} s")

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Return different free ports: all are held until the last is chosen."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--libs", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--override", action="append", default=[])
    options = parser.parse_args()
    keeper.exit_on_signals()
    nodes = Nodes(options.libs, options.data, options.override)
    try:
        nodes.start()
        nodes.wait_ready()
        print(f"ready: {nodes.addresses}", flush=True)
        keeper.wait_for_parent()
    finally:
        keeper.ignore_signals()
        nodes.kill()


if __name__ == "__main__":
    main()
