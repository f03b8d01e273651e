"""Commands during a fail-over succeed.

A broker process that leads a topic, coordinates a group and may be the controller dies or freezes.
The commands start at once: they have to outlast the session of the broker and the elections after
it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.client import Admin, produce
from millstream.core.types import TopicPartition
from support.clusters import ProcessCluster
from support.processes import wait_until

COMMANDS = {
    "describe": ("topics", "describe", "orders"),
    "names": ("topics", "list", "--names"),
    "group": ("groups", "describe", "readers"),
    "read": ("consume", "orders", "--exit"),
    "create": ("topics", "create", "made-meanwhile", "--replication-factor", "2"),
}


def ask(words: tuple[str, ...], bootstrap: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a long timeout: the test checks that it succeeds, not when."""
    command = [
        sys.executable,
        "-m",
        "millstream",
        *words,
        "--bootstrap",
        bootstrap,
        "--timeout",
        "90",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.long
@pytest.mark.parametrize("ends", ["kill", "pause"])
def test_commands_succeed_during_fail_over(
    process_cluster: Callable[..., ProcessCluster], ends: str
) -> None:
    with process_cluster(3) as cluster:
        cluster.create_topic("orders", 1)
        produce(cluster.bootstrap, "orders", [b"1", b"2"])
        with Admin(cluster.bootstrap) as admin:
            admin.groups.alter("readers", {TopicPartition("orders", 0): 1})
            victim = admin.groups.get("readers").coordinator.node
        wait_until(lambda: cluster.in_sync("orders") == 3, "all have it")
        wait_until(lambda: cluster.in_sync("__consumer_offsets") == 3, "all have the group")
        cluster.move_leader("orders", 0, victim)
        everybody = cluster.bootstrap
        getattr(cluster.brokers[victim], ends)()
        with ThreadPoolExecutor(len(COMMANDS)) as pool:
            futures = {name: pool.submit(ask, words, everybody) for name, words in COMMANDS.items()}
        processes = {name: future.result() for name, future in futures.items()}
        assert {
            name: process.stderr for name, process in processes.items() if process.returncode
        } == {}
        assert "Topic: orders" in processes["describe"].stdout
        assert "orders" in processes["names"].stdout.split()
        assert processes["read"].stdout == "1\n2\n"
        (row,) = [
            line.split() for line in processes["group"].stdout.splitlines() if "orders" in line
        ]
        assert row[row.index("orders") + 1 :][:4] == ["0", "1", "2", "1"]
