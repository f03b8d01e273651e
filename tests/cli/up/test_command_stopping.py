"""How ``millstream up`` ends: in good order and soon, also without ZooKeeper; at once where
somebody insists; and what comes after a kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.up.stale_processes import wait_for_stale_processes
from millstream.local import cluster_file
from millstream.local.cluster import HAND_OVER_S
from millstream.local.cluster_file import ClusterFile, Entry, State
from millstream.log.directories.file_names import CLEAN_SHUTDOWN
from support.local_up import Up
from support.processes import alive

# What a broker without ZooKeeper would wait for a hand-over, were it not clear that there is none.
HAND_OVER_BOUND_S = 15.0


def kill_zookeeper(up: Up) -> None:
    (server,) = up.file().zookeepers
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    up.until(event="died", kind="zookeeper")


def numbers(first: int, end: int) -> str:
    return "".join(f"{number}\n" for number in range(first, end))


def remarks(up: Up) -> list[str]:
    return [row["text"] for row in up.seen(event="remark")]


def test_without_zookeeper_brokers_serve_what_they_lead_stop_at_once_and_lose_nothing(
    up: Callable[..., Up], command: Callable[..., Any]
) -> None:
    one = up("--brokers", "3", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    where = one.file().bootstrap
    made = command("topics", "create", "orders", "-p", "3", "-r", "3", bootstrap=where, text=True)
    assert made.returncode == 0, made.stderr
    sent = command("produce", "orders", bootstrap=where, text=True, input=numbers(0, 50))
    assert sent.returncode == 0, sent.stderr

    kill_zookeeper(one)
    # A producer that begins now gets its id of what the brokers keep ahead.
    sent = command("produce", "orders", bootstrap=where, text=True, input=numbers(50, 100))
    assert sent.returncode == 0, sent.stderr
    looked = command("doctor", "--format", "json", bootstrap=where, text=True)
    failures = [row["message"] for row in json.loads(looked.stdout) if row["level"] == "FAIL"]
    assert [text.split(", ")[0] for text in failures] == ["the controller"], looked.stderr
    begun_s = time.monotonic()
    assert one.end(signal.SIGINT) == 0
    assert time.monotonic() - begun_s < HAND_OVER_BOUND_S
    assert remarks(one)[0] == (
        "stopping broker 0, broker 1, broker 2 at once, without handing over leadership, because ZooKeeper does not respond; "
        "press Ctrl-C again to kill the remaining processes"
    )
    assert all(
        (one.data / f"broker-{node}" / "data" / CLEAN_SHUTDOWN).exists() for node in range(3)
    )

    later = up()
    later.until(event="ready")
    read = command("consume", "orders", "--from", "earliest", "--exit", bootstrap=where, text=True)
    assert sorted(map(int, read.stdout.split())) == list(range(100)), read.stderr
    assert later.end() == 0


def test_a_second_ctrl_c_kills_what_is_left_but_not_one_that_is_pressed_twice(
    up: Callable[..., Up],
) -> None:
    one = up("--brokers", "2", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    pids = one.pids()
    kill_zookeeper(one)  # brokers look for it for some seconds
    one.process.send_signal(signal.SIGINT)
    one.until(event="remark")
    one.process.send_signal(signal.SIGINT)
    one.process.send_signal(signal.SIGTERM)
    time.sleep(1.2)
    assert one.process.poll() is None and len(remarks(one)) == 1
    assert one.end(signal.SIGINT) == 130
    assert remarks(one)[-1] == "killing the remaining processes; the next start recovers their logs"
    assert not any(alive(pid) for pid in pids) and one.pids() == []


def test_a_broker_that_is_paused_does_not_hold_up_the_others(up: Callable[..., Up]) -> None:
    one = up("--brokers", "2", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    pid = one.file().brokers[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    begun_s = time.monotonic()
    assert one.end() == 0
    assert time.monotonic() - begun_s < HAND_OVER_BOUND_S + HAND_OVER_S
    assert not alive(pid)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="only Linux ends the brokers of an up that was killed, and tells whose log a process writes",
)
def test_a_start_after_a_kill_waits_for_those_that_are_still_ending(up: Callable[..., Up]) -> None:
    one = up("--brokers", "1", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    pid = one.file().brokers[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it ends as slowly as can be
    one.process.kill()
    one.process.wait()
    later = up()
    assert later.process.stderr is not None
    errors = later.process.stderr.readline()
    assert later.process.poll() is None and not later.events
    os.kill(pid, signal.SIGCONT)
    later.until(event="ready")
    assert later.end() == 0
    errors += later.errors()
    assert errors.startswith("waiting for ") and f"broker 0 (pid {pid})" in errors
    assert "to exit: the last `millstream up` in this directory was killed" in errors


def test_a_pid_that_is_somebody_elses_by_now_is_not_waited_for(tmp_path: Path) -> None:
    """That of this test, for one."""
    (tmp_path / "broker.log").touch()
    entry = Entry(
        0, "127.0.0.1", 1, pid=os.getpid(), state=State.UP, log=str(tmp_path / "broker.log")
    )
    cluster_file.write(tmp_path, ClusterFile(brokers=[entry]))
    begun_s = time.monotonic()
    wait_for_stale_processes(tmp_path)
    assert time.monotonic() - begun_s < 1.0
