"""A container engine for tests without one: each container is a process on this machine.

``FakeEngine`` stands in for the ``DockerClient`` of testcontainers. It has the calls that
testcontainers makes for one container. Absolute paths of uploaded files are mapped to a directory.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testcontainers.core.config import ConnectionMode


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class FakeContainer:
    """A container: its command runs in a directory, with nothing but its own environment."""

    id = "0123456789ab"
    short_id = id

    def __init__(
        self, directory: Path, command: Sequence[str], environment: Mapping[str, str], image: Any
    ) -> None:
        self.directory = directory
        self.command = command
        self.environment = environment
        self.image = image
        self.log_file = directory / "container.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.status = "created"

    def start(self) -> None:
        command = [word.replace(" /", f" {self.directory}/") for word in self.command]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.status = "running"

    def put_archive(self, path: str, data: bytes) -> bool:
        assert path == "/"
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(self.directory, filter="data")
        return True

    def reload(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            self.status = "exited"

    def logs(self, **streams: bool) -> bytes:
        return self.log_file.read_bytes()

    def remove(self, **options: Any) -> None:
        """Kill the container, as the engine does for a forced removal."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()


class FakeEngine:
    """The engine. Every mapped port is the port inside, because both are on this machine."""

    def __init__(self, directory: Path, image: Mapping[str, Any], environment: Mapping[str, str]):
        self.client = SimpleNamespace(close=lambda: None)
        self.directory = directory
        self.image = SimpleNamespace(attrs={"Config": image})
        self.environment = environment
        self.containers: list[FakeContainer] = []

    def create(self, image: str, command: Any = None, **options: Any) -> FakeContainer:
        words = [*options["entrypoint"], *(command or [])]
        environment = {**self.environment, **options["environment"]}
        self.containers.append(FakeContainer(self.directory, words, environment, self.image))
        return self.containers[-1]

    def start(self, container: FakeContainer) -> None:
        container.start()

    def get_connection_mode(self) -> ConnectionMode:
        return ConnectionMode.docker_host

    def host(self) -> str:
        return "127.0.0.1"

    def port(self, container_id: str, port: int) -> str:
        return str(port)
