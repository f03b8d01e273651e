"""``serve --ephemeral`` as a child of a test: ready, used, and gone with its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.ephemeral import ephemeral_settings
from millstream.core.settings import Given, SettingError
from millstream.wire.records.batch import Record, build_batch
from support.processes import wait_until
from support.raw import RawClient, create_topic, fetch_request, produce

SERVE = [sys.executable, "-m", "millstream", "serve", "--ephemeral"]
TIMEOUT_S = 60

# A parent that starts a broker, prints its line and waits. It is killed in the tests.
PARENT = """
import subprocess, sys, time
how = {"pipe": subprocess.PIPE, "null": subprocess.DEVNULL}[sys.argv[1]]
child = subprocess.Popen(sys.argv[2:], stdin=how, stdout=subprocess.PIPE)
print(child.stdout.readline().decode(), end="", flush=True)
time.sleep(600)
"""


@contextmanager
def started(*words: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Yield the process and the facts of its ready line."""
    defaults = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*SERVE, "--format", "json", *words], **defaults | options) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def temporary(facts: dict[str, Any]) -> Path:
    """Return the temporary directory of a broker: that of its data, and an owner file."""
    [data] = facts["data"]
    return Path(data).parent


def is_gone(facts: dict[str, Any]) -> bool:
    try:
        socket.create_connection((facts["host"], facts["port"])).close()
    except ConnectionError:
        return not temporary(facts).exists()
    return False


def test_ready_line_has_the_address_of_a_broker_that_serves_clients() -> None:
    with started() as (process, facts):
        assert facts["event"] == "ready" and facts["pid"] == process.pid
        assert facts["bootstrap"] == f"127.0.0.1:{facts['port']}"
        assert facts["listeners"] == [f"PLAINTEXT://{facts['bootstrap']}"]
        with RawClient(facts["bootstrap"]) as client:
            create_topic(client, "orders")
            batch = build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())])
            assert produce(client, "orders", 0, batch).error_code == 0
        assert temporary(facts).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_it_and_removes_its_data(number: signal.Signals) -> None:
    with started(stderr=subprocess.PIPE) as (process, facts):
        with RawClient(facts["bootstrap"]) as client:
            create_topic(client, "quiet")
            # A delayed fetch does not hold up the end: the data is not read again.
            client.send(fetch_request("quiet", max_wait_ms=600_000), 11)
            process.send_signal(number)
            assert process.wait(TIMEOUT_S) == 0
        assert is_gone(facts)
        assert process.stderr is not None and process.stderr.read() == ""


def test_closed_stdin_ends_it() -> None:
    with started(stderr=subprocess.PIPE) as (process, facts):
        assert process.stdin is not None and process.stderr is not None
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
        assert is_gone(facts)
        assert process.stderr.read().endswith("stopping: standard input was closed\n")


@pytest.mark.parametrize("stdin", ["pipe", "null"])
def test_killed_parent_ends_it(stdin: str) -> None:
    command = [sys.executable, "-c", PARENT, stdin, *SERVE, "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            facts = json.loads(parent.stdout.readline())
        finally:
            parent.kill()
    wait_until(lambda: is_gone(facts), "the broker to end after its parent")


def test_killed_grandparent_behind_a_shell_ends_it() -> None:
    """The shell survives, but the pipe on standard input is closed."""
    shell = ["sh", "-c", '"$@"; true', "sh", *SERVE, "--format", "json"]
    command = [sys.executable, "-c", PARENT, "pipe", *shell]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            facts = json.loads(parent.stdout.readline())
        finally:
            parent.kill()
    wait_until(lambda: is_gone(facts), "the broker to end after its parent")


def test_nothing_is_read_from_stdin() -> None:
    """Standard input may be the script of the shell that runs the tests."""
    read, write = os.pipe()
    os.write(write, b"echo next\n")
    with started(stdin=read) as (process, _):
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    os.close(write)
    with os.fdopen(read, "rb") as script:
        assert script.read() == b"echo next\n"


def test_stdin_that_is_closed_from_the_start_does_not_end_it() -> None:
    read, write = os.pipe()
    os.close(write)
    with started(stdin=read) as (process, facts):
        os.close(read)
        with RawClient(facts["bootstrap"]) as client:
            create_topic(client, "orders")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.6)  # more than two polls


def test_ready_fd_gets_the_line_and_is_closed(tmp_path: Path) -> None:
    read, write = os.pipe()
    command = [*SERVE, f"--ready-fd={write}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[write]
    ) as process:
        os.close(write)
        with os.fdopen(read) as lines:
            [facts] = map(json.loads, lines)  # up to the end of the file
        assert facts["pid"] == process.pid
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert out.startswith(b"millstream ready: node 0, PLAINTEXT://127.0.0.1:")
    assert process.returncode == 0


def test_file_of_a_real_broker_is_used_without_its_places(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\n"
        "node.id=7\n"
        "listeners=PLAINTEXT://10.255.255.1:9092,CONTROLLER://10.255.255.1:9093\n"
        "advertised.listeners=PLAINTEXT://kafka.example.com:9092\n"
        "inter.broker.listener.name=PLAINTEXT\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={tmp_path / 'real'}\n"
        "num.partitions=3\n"
    )
    with started("--config", str(file), "--set", "num.partitions=5") as (_, facts):
        assert facts["node_id"] == 7 and facts["host"] == "127.0.0.1"
        with RawClient(facts["bootstrap"]) as client:
            create_topic(client, "orders", partitions=-1)
    assert not (tmp_path / "real").exists()


def test_data_directory_and_cluster_contradict_it() -> None:
    for name, remedy in {
        "log.dirs": "remove log.dirs, or --ephemeral",
        "metadata.log.dir": "remove metadata.log.dir, or --ephemeral",
        "zookeeper.connect": "remove zookeeper.connect, or --ephemeral",
    }.items():
        with pytest.raises(SettingError, match=remedy):
            ephemeral_settings({}, {name: Given("x", f"--set {name}")})


def test_settings_of_the_user_override_those_for_tests() -> None:
    from_file = {"offsets.topic.num.partitions": Given("9", "file, line 1")}
    settings = ephemeral_settings(from_file, {"listeners": Given("PLAINTEXT://:1", "--set")})
    assert settings["offsets.topic.num.partitions"].text == "9"
    assert settings["listeners"].text == "PLAINTEXT://:1"
    assert settings["group.initial.rebalance.delay.ms"].text == "0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--existing"], "--ephemeral creates new data and --existing refuses it"),
        (["--format", "xml"], "--format takes text or json, not 'xml'"),
        (["--ready-fd", "three"], "--ready-fd takes the number of a file descriptor, not 'three'"),
        (["--ready-fd", "987"], "--ready-fd 987 is not open; the parent process must pass it on"),
    ],
)
def test_misuse_is_reported_with_a_remedy(words: list[str], message: str) -> None:
    done = subprocess.run([*SERVE, *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""
