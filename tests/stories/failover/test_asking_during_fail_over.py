"""A broker process that leads a topic, coordinates a group and may be the controller dies or
freezes; commands that ask at once are answered.

Nobody is waited for in between: the commands have to live through the session of the broker and the
elections after it.
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
    """Patient: what is tested is that it is answered, not when."""
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
def test_commands_are_answered(process_cluster: Callable[..., ProcessCluster], ends: str) -> None:
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
            asked = {name: pool.submit(ask, words, everybody) for name, words in COMMANDS.items()}
        told = {name: future.result() for name, future in asked.items()}
        assert {name: one.stderr for name, one in told.items() if one.returncode} == {}
        assert "Topic: orders" in told["describe"].stdout
        assert "orders" in told["names"].stdout.split()
        assert told["read"].stdout == "1\n2\n"
        (row,) = [line.split() for line in told["group"].stdout.splitlines() if "orders" in line]
        assert row[row.index("orders") + 1 :][:4] == ["0", "1", "2", "1"]
