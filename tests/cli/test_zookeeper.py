"""``millstream zookeeper``: a real server in the foreground."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.client.errors import ClientError
from millstream.local.foreground import is_owned
from millstream.local.process import child_environment
from millstream.local.zookeeper import LocalZooKeeper, free_ports, server_mode
from support.processes import alive, children_of, wait_until
from support.zookeeper import skip_without_zookeeper

READY = re.compile(
    r"^zookeeper ready: (127\.0\.0\.1):(\d+), data \S+, log \S+zookeeper\.log, [\d.]+ s$", re.M
)

Start = Callable[..., "Running"]


class Running:
    """The command, and where its server listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = READY.match(line.rstrip("\n"))
        assert ready, (line, process.wait(30), process.stderr.read() if process.stderr else "")
        self.host, self.port = ready[1], int(ready[2])

    @property
    def server_pid(self) -> int:
        (pid,) = children_of(self.process.pid)
        return pid

    def ended(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    skip_without_zookeeper()
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, port: int = 0) -> Running:
        command = [sys.executable, "-m", "millstream", "zookeeper", "--port", str(port)]
        started.append(
            subprocess.Popen(
                [*command, "--data", str(tmp_path / "zk"), *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=child_environment(),
            )
        )
        return Running(started[-1])

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_ready_and_stops_when_told(
    start: Start, number: signal.Signals
) -> None:
    running = start()
    assert server_mode(running.host, running.port) == "standalone"
    server = running.server_pid
    running.process.send_signal(number)
    assert running.ended() == (0, "")
    assert not alive(server)


def test_its_port_and_its_directory_are_its_own(
    start: Start, command: Callable[..., object]
) -> None:
    (port,) = free_ports(1)
    running = start(port=port)
    assert running.port == port
    data = str(Path(running.process.args[-1]))  # type: ignore[index]
    same = command("zookeeper", "--port", "0", "--data", data, text=True)
    assert (same.returncode, same.stdout) == (1, "")
    assert (
        same.stderr
        == f"error: a ZooKeeper server is already running in {data}; stop it, or choose another --data\n"
    )
    other = command("zookeeper", "--port", str(port), "--data", data + "-2", text=True)
    assert other.returncode == 1
    assert other.stderr == (
        f"error: port in use on 127.0.0.1: {port} (ZooKeeper); choose another --port, or use the server that runs at "
        f"127.0.0.1:{port}\n"
    )


@pytest.mark.parametrize(
    ("file", "text", "count"),
    [("data/myid", "2\n", ""), ("zoo.cfg", "server.1=a:1:2\nserver.2=b:1:2\n", " --zookeepers 2")],
)
def test_a_member_of_an_ensemble_does_not_run_alone(
    tmp_path: Path, command: Callable[..., Any], file: str, text: str, count: str
) -> None:
    """It would serve what it has beside the others, who may have gone on without it."""
    directory = tmp_path / "cluster" / "zookeeper-2"
    (directory / "data").mkdir(parents=True)
    (directory / file).write_text(text)
    ran = command("zookeeper", "--port", "0", "--data", str(directory), text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"error: {directory} belongs to a member of an ensemble, which must not run alone; start the whole ensemble with "
        f"`millstream up --data cluster{count}`, or choose another --data\n"
    )
    assert (directory / file).read_text() == text
    with pytest.raises(
        ClientError, match="must not run alone"
    ):  # nor by whatever else would start it
        LocalZooKeeper(directory).spawn()


def test_the_server_itself_has_its_directory_locked(start: Start) -> None:
    """Whoever has started it may be gone while it is still ending."""
    running = start()
    server, directory = running.server_pid, Path(running.process.args[-1])  # type: ignore[index]
    os.kill(server, signal.SIGSTOP)
    try:
        running.process.kill()
        running.process.wait()
        assert is_owned(directory)
        with pytest.raises(ClientError, match=r"a ZooKeeper server is already running in "):
            LocalZooKeeper(directory).spawn()
    finally:
        os.kill(server, signal.SIGKILL)
    wait_until(lambda: not is_owned(directory), "the directory to be free")


def test_a_server_that_dies_is_told(start: Start) -> None:
    running = start()
    os.kill(running.server_pid, signal.SIGKILL)
    code, errors = running.ended()
    assert code == 1
    assert errors.startswith("error: the ZooKeeper server exited with code -9; see ")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to help")
def test_no_server_is_left_behind_by_a_command_that_is_killed(start: Start) -> None:
    running = start()
    server = running.server_pid
    running.process.kill()
    wait_until(lambda: not alive(server), "the server to end with the command")
    # Threads may live on for a moment when the first one is gone.
    wait_until(lambda: server_mode(running.host, running.port) is None, "the port to be closed")
