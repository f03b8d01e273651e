"""``millstream up --remove``: a broker leaves for good, and never with the only
copy of anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.up import removal
from millstream.client.errors import ClientError
from millstream.local import cluster_file
from millstream.local.cluster_file import State
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from support.local_up import Up
from support.raw import RawClient


def states(up: Up) -> dict[int, State]:
    return {one.node_id: one.state for one in up.file().brokers}


def test_a_broker_without_replicas_leaves_for_good(
    up: Callable[..., Up], command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = up("--brokers", "3", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    data, where = str(one.data), one.file().brokers[0].address
    made = command(
        "topics", "create", "orders", "--replica-assignment", "2:1,0:2", bootstrap=where, text=True
    )
    assert made.returncode == 0, made.stderr

    refused = command("up", "--remove", "2", "--data", data, text=True)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "error: broker 2 has replicas of 2 partitions: orders-0, orders-1; "
        f"move them first: millstream reassign execute --brokers 0,1 --bootstrap {where}\n"
    )
    wide = command(
        "topics", "create", "wide", "--replica-assignment", "0:1:2", bootstrap=where, text=True
    )
    assert wide.returncode == 0, wide.stderr
    refused = command("up", "--remove", "2", "--data", data, text=True)
    assert "add a broker first (millstream up --add), or use fewer replicas: " in refused.stderr
    fewer = ("--brokers", "0,1", "--replication-factor", "2")
    moved = command("reassign", "execute", *fewer, "--topic", "wide", bootstrap=where, text=True)
    assert moved.returncode == 0, moved.stderr
    assert states(one) == dict.fromkeys(range(3), State.UP)
    moved = command("reassign", "execute", "--brokers", "0,1", bootstrap=where, text=True)
    assert moved.returncode == 0, moved.stderr

    # A topic that is made while it stops may have been given to it: then it is started again.
    answers = [([], 0), (["late-0"], 1)]
    with monkeypatch.context() as patched:
        patched.setattr(removal, "replicas_on", lambda bootstrap, node: answers.pop(0))
        with pytest.raises(ClientError, match="broker 2 has replicas of 1 partition: late-0"):
            removal.remove_broker(one.data, "2", as_json=False)
    assert states(one) == dict.fromkeys(range(3), State.UP) and one.seen(node_id=2, state="stopped")

    old = (one.data / "broker-2" / "data" / "meta.properties").read_text()
    removed = command("up", "--remove", "2", "--data", data, "--format", "json", text=True)
    assert removed.returncode == 0, removed.stderr
    aside = one.data / "broker-2.removed"
    assert json.loads(removed.stdout) == {
        "kind": "broker",
        "node_id": 2,
        "state": "removed",
        "directory": str(aside),
    }
    assert states(one) == {0: State.UP, 1: State.UP} and one.file().bootstrap.count(",") == 1
    assert (aside / "data" / "meta.properties").read_text() == old
    with RawClient(where) as client:
        rows = client.call(DescribeClusterRequest(include_fenced_brokers=True), 2).brokers
    assert {row.broker_id for row in rows} == {0, 1}, "broker 2 is unregistered"
    assert "has no broker 2" in command("up", "--remove", "2", "--data", data, text=True).stderr

    added = command(
        "up", "--add", "--data", data, text=True
    )  # of the same number, with nothing of the old one
    assert added.stdout.startswith("broker 2 is up"), added.stderr
    again = command("up", "--remove", "2", "--data", data, text=True, cwd=one.data)
    assert (
        again.stdout
        == "removed broker 2; its directory is now broker-2.removed-2 and may be deleted\n"
    )
    assert one.end() == 0
    later = up()
    later.until(event="ready")
    assert states(later) == {0: State.UP, 1: State.UP}
    assert later.end() == 0


def test_the_last_broker_does_not_leave(up: Callable[..., Up], command: Callable[..., Any]) -> None:
    one = up("--brokers", "1", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    ran = command("up", "--remove", "0", "--data", str(one.data), text=True)
    assert ran.stderr.startswith(
        "error: no other broker than 0 is up; the last broker cannot be removed"
    )
    assert states(one) == {0: State.UP}
    assert one.end() == 0


def test_only_a_cluster_that_runs_can_tell_what_a_broker_has(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    ran = command("up", "--remove", "2", "--data", str(tmp_path), text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"error: no cluster is running in {tmp_path}, and only a running cluster knows whether broker 2 has replicas; "
        "start it with `millstream up`, or choose its directory with --data\n"
    )
    ran = command("up", "--remove", "zookeeper-2", "--data", str(tmp_path), text=True)
    assert ran.returncode == 2 and "only brokers can be removed" in ran.stderr


def test_what_is_aside_is_not_written_over(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        aside = cluster_file.removed_name(tmp_path / "broker-2")
        aside.mkdir()
        names.append(aside.name)
    assert names == ["broker-2.removed", "broker-2.removed-2", "broker-2.removed-3"]
