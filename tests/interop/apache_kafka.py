"""Apache Kafka itself, from Maven: a broker (KRaft, one process) and its log dump tool.

The broker shows that our programs are right, and writes the data directories that Millstream must
open.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

CLUSTER_ID = "MillstreamInterop00000"
READY_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ApacheKafka:
    """One broker and controller in one process, on free ports, with its data under
    ``directory``.
    """

    def __init__(
        self, java: Sequence[str], directory: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        self._java = list(java)
        self.directory = directory
        self.data_dir = directory / "kafka-data"
        self.port, self._controller_port = free_port(), free_port()
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ApacheKafka:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self._write_config()
        if not self.data_dir.exists():
            self._tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        command = [*self._java[:1], "-Xmx512m", *self._java[1:], "kafka.Kafka", str(config)]
        with (self.directory / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_listening()
        return self

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def dump(self, *arguments: str) -> str:
        """What DumpLogSegments prints; it ends with an error when it finds a file
        it cannot read.
        """
        return dump_log_segments(self._java, *arguments)

    def _write_config(self) -> Path:
        listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"{listener},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data_dir,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.min.isr": 1,
            "auto.create.topics.enable": "false",
            "log.initial.task.delay.ms": 500,
        } | self._settings
        config = self.directory / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return config

    def _tool(self, *words: str) -> None:
        subprocess.run([*self._java, *words], check=True, capture_output=True, timeout=60)

    def _wait_listening(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self.directory / "kafka.log").read_text()[-2000:]
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("Apache Kafka did not start")

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def dump_log_segments(java: Sequence[str], *arguments: str) -> str:
    command = [*java, "org.apache.kafka.tools.DumpLogSegments", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout + done.stderr
