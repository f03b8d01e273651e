"""The commands of an operator against real brokers: reassign, elect-leaders, migrate; what they say
and what comes of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.client import Admin
from millstream.local.broker import LocalBroker
from millstream.local.zookeeper import LocalZooKeeper
from millstream.wire.records.batch import Record, build_batch
from support.clusters import ProcessCluster
from support.processes import complaints, wait_until
from support.raw import RawClient, produce_request

TOPIC = "orders"
SIZE, BATCHES = 200_000, 20


def started(bootstrap: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millstream", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"MILLSTREAM_BOOTSTRAP": bootstrap},
    )


def run(bootstrap: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"MILLSTREAM_BOOTSTRAP": bootstrap},
    )


def done(bootstrap: str, *words: str) -> str:
    ran = run(bootstrap, *words)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout


def partition(bootstrap: str) -> Any:
    with Admin(bootstrap) as admin:
        return admin.topics.get(TOPIC).partitions[0]


def fill(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        for _ in range(BATCHES):
            batch = build_batch(
                [Record(0, time.time_ns() // 1_000_000, None, os.urandom(SIZE), ())]
            )
            answer = client.call(produce_request(TOPIC, 0, batch, acks=-1), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0


def throttles(bootstrap: str, brokers: int = 3) -> dict[str, str]:
    with Admin(bootstrap) as admin:
        found = dict(admin.configs.overrides("topic", TOPIC))
        for node in range(brokers):
            found |= admin.configs.overrides("broker", node)
    return {name: value for name, value in found.items() if "throttled" in name}


def plan_of(directory: Path, topic: str, *replicas: int) -> Path:
    plan = directory / f"{topic}.json"
    rows = [{"topic": topic, "partition": 0, "replicas": list(replicas)}]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    return plan


def test_a_throttled_move_is_called_off_and_made_again(
    process_cluster: Callable[..., ProcessCluster], tmp_path: Path
) -> None:
    with process_cluster(3, {"auto.leader.rebalance.enable": "false"}) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        bootstrap = cluster.bootstrap
        fill(cluster.bootstrap_of(0))
        plan = plan_of(tmp_path, TOPIC, 2, 1)
        slowly = ("execute", str(plan), "--throttle", "100000", "--no-wait")
        ran = run(bootstrap, "reassign", *slowly)
        assert ran.returncode == 0 and "reassign unthrottle" in ran.stderr, ran.stderr
        (row,) = json.loads(done(bootstrap, "reassign", "status", "--format", "json"))
        assert (row["adding"], row["removing"]) == ([2], [0])
        slow = throttles(bootstrap)
        assert slow
        cluster.create_topic("small", at={0: (0,)})
        ran = run(
            bootstrap,
            "reassign",
            "execute",
            str(plan_of(tmp_path, "small", 1)),
            "--throttle",
            "100000",
        )
        assert ran.returncode == 0 and "other moves are still in progress" in ran.stderr, ran.stderr
        assert throttles(bootstrap) == slow, "the one that ends first leaves the other its throttle"
        waiting = started(bootstrap, "reassign", "execute", str(plan), "--throttle", "100000")
        assert (
            waiting.stderr is not None
            and "also applies to the moves in progress" in waiting.stderr.readline()
        )
        waiting.terminate()
        assert "the throttle is still set" in waiting.communicate(timeout=60)[1]
        assert run(bootstrap, "reassign", "cancel").returncode == 0
        assert set(partition(bootstrap).replicas) == {0, 1} and not throttles(bootstrap)
        wait_until(
            lambda: not (cluster.brokers[2].data_dir / f"{TOPIC}-0").exists(),
            "the new replica to go again",
        )

        assert run(bootstrap, "reassign", *slowly).returncode == 0
        done(bootstrap, "reassign", "unthrottle")
        assert not throttles(bootstrap)
        wait_until(lambda: set(partition(bootstrap).isr) == {1, 2}, "the move at full speed")
        assert partition(bootstrap).replicas == (2, 1)
        wait_until(
            lambda: not (cluster.brokers[0].data_dir / f"{TOPIC}-0").exists(), "the old one to go"
        )

        leaders = json.loads(done(bootstrap, "elect-leaders", "--format", "json"))
        assert partition(bootstrap).leader == 2, leaders
        assert (
            "every partition already has its preferred leader"
            in run(bootstrap, "elect-leaders").stderr
        )
        assert complaints(cluster.logs()) == []


def up(cluster: ProcessCluster) -> set[int]:
    with Admin(cluster.bootstrap) as admin:
        return {broker.id for broker in admin.cluster.describe().brokers}


def kill(cluster: ProcessCluster, node: int) -> None:
    cluster.brokers[node].kill()
    wait_until(lambda: node not in up(cluster), f"broker {node} to be missed")


def move_slowly(cluster: ProcessCluster, directory: Path, *replicas: int) -> None:
    fill(cluster.bootstrap_of(0))
    plan = str(plan_of(directory, TOPIC, *replicas))
    done(cluster.bootstrap, "reassign", "execute", plan, "--throttle", "1000", "--no-wait")


@pytest.mark.parametrize(
    ("command", "told"),
    [("cancel", "cancelled 1 of 1 move"), ("unthrottle", "removed the throttle")],
)
def test_a_throttle_is_lifted_of_a_broker_that_is_away(
    process_cluster: Callable[..., ProcessCluster], tmp_path: Path, command: str, told: str
) -> None:
    """Its settings are the cluster's: it comes back without those that were taken from it
    meanwhile.
    """
    with process_cluster(3) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        move_slowly(cluster, tmp_path, 2, 1)
        kill(cluster, 2)
        ran = run(cluster.bootstrap, "reassign", command)
        assert (ran.returncode, ran.stderr) == (0, f"{told}\n")
        cluster.brokers[2].start()
        assert not throttles(cluster.bootstrap)


def test_partitions_leave_a_broker_that_is_away_at_the_rate_that_was_asked_for(
    process_cluster: Callable[..., ProcessCluster],
) -> None:
    with process_cluster(3) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 2)})
        kill(cluster, 2)
        bootstrap = cluster.bootstrap
        done(
            bootstrap,
            "reassign",
            "execute",
            "--topic",
            TOPIC,
            "--brokers",
            "0,1",
            "--throttle",
            "100000000",
        )
        assert partition(bootstrap).replicas == (0, 1)
        with Admin(bootstrap) as admin:
            assert "2" in admin.configs.names("broker"), "it is registered"
            admin.cluster.unregister(2)
            assert "2" not in admin.configs.names("broker"), "neither replicas nor settings"
        away = run(
            bootstrap,
            "configs",
            "alter",
            "broker",
            "2",
            "--set",
            "leader.replication.throttled.rate=5",
        )
        assert away.returncode == 1 and "broker '2' does not exist" in away.stderr
        cluster.brokers[2].start()
        assert not throttles(bootstrap)


def test_a_plan_made_during_a_move_begins_where_the_move_ends(
    process_cluster: Callable[..., ProcessCluster], tmp_path: Path
) -> None:
    """Not with the old replicas and the new ones, which the partition has only meanwhile."""

    def planned(*words: str) -> tuple[list[list[int]], str]:
        ran = run(cluster.bootstrap, "reassign", "plan", "--topic", TOPIC, *words)
        assert ran.returncode == 0, ran.stderr
        return [row["replicas"] for row in json.loads(ran.stdout)["partitions"]], ran.stderr

    with process_cluster(3) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        move_slowly(cluster, tmp_path, 2, 1)
        assert planned() == ([], "nothing to move\n")
        assert planned("--brokers", "0,1") == ([[0, 1]], "1 of 1 partition to move\n")
        kill(cluster, 2)
        (replicas,), remarks = planned()
        assert sorted(replicas) == [0, 1]
        assert "broker 2 is offline: this plan moves its replicas to other brokers" in remarks
        assert "is offline" not in planned("--brokers", "0,1")[1], "somebody meant it"


def test_settings_of_a_broker_that_is_away_are_changed_through_the_others(
    process_cluster: Callable[..., ProcessCluster],
) -> None:
    with process_cluster(2) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        kill(cluster, 1)
        done(
            cluster.bootstrap,
            "configs",
            "alter",
            "broker",
            "1",
            "--set",
            "leader.replication.throttled.rate=5",
        )
        asked = run(cluster.bootstrap, "configs", "describe", "broker", "1")
        assert asked.returncode == 1 and "broker 1 is down" in asked.stderr
        cluster.brokers[1].start()
        with Admin(cluster.bootstrap) as admin:
            assert admin.configs.overrides("broker", 1) == {
                "leader.replication.throttled.rate": "5"
            }


def test_bad_plans_are_told(process_cluster: Callable[..., ProcessCluster], tmp_path: Path) -> None:
    with process_cluster(2) as cluster:
        cluster.create_topic(TOPIC, at={0: (0, 1)})
        plan = tmp_path / "plan.json"
        for text, complaint in {
            "{": "is not a reassignment plan",
            "[]": "is not a reassignment plan",
            "null": "is not a reassignment plan",
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [0, 7]}]}': "broker 7",
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [0, 0]}]}': "more than once",
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": []}]}': "empty replica list",
            '{"partitions": [{"topic": "orders", "partition": 9, "replicas": [0]}]}': "its partitions are 0 to 0",
            '{"partitions": [{"topic": "nothing", "partition": 0, "replicas": [0]}]}': "nothing",
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": "01"}]}': "is not a reassignment plan",
            '{"partitions": [{"topic": "orders", "partition": 0.5, "replicas": [1]}]}': "is not a reassignment plan",
            '{"version": 7, "partitions": []}': "is not a reassignment plan",
            '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [0]},'
            ' {"topic": "orders", "partition": 0, "replicas": [1]}]}': "orders-0 more than once",
        }.items():
            plan.write_text(text)
            ran = run(cluster.bootstrap, "reassign", "execute", str(plan))
            assert ran.returncode == 1 and complaint in ran.stderr, (text, ran.stdout, ran.stderr)
            assert "Traceback" not in ran.stderr
        plan.write_text('{"partitions": []}')
        ran = run(cluster.bootstrap, "reassign", "execute", str(plan))
        assert (ran.returncode, ran.stdout) == (0, "") and "nothing to move" in ran.stderr
        ran = run(cluster.bootstrap, "reassign", "plan", "--brokers", "0,9")
        assert ran.returncode == 1 and "broker 9 does not exist" in ran.stderr
        assert run(cluster.bootstrap, "reassign", "plan", "--brokers", "").returncode == 2
        ran = run(cluster.bootstrap, "reassign", "cancel", "--topic", "nope")
        assert ran.returncode == 1 and "nope" in ran.stderr
        plan.write_text('{"partitions": [{"topic": "orders", "partition": 0, "replicas": [0, 7]}]}')
        ran = run(cluster.bootstrap, "reassign", "execute", str(plan), "--throttle", "1000")
        assert ran.returncode == 1 and "broker 7 does not exist" in ran.stderr
        assert not throttles(cluster.bootstrap, brokers=2)
        assert (
            run(cluster.bootstrap, "reassign", "execute", str(plan), "--throttle", "0").returncode
            == 2
        )
        assert partition(cluster.bootstrap).replicas == (0, 1)


def test_the_command_moves_a_stopped_broker_and_says_what_comes_next(
    zookeeper: LocalZooKeeper, tmp_path: Path
) -> None:
    connect = f"{zookeeper.address}/{tmp_path.name}"
    with LocalBroker(tmp_path / "b", {}) as alone:
        done(alone.bootstrap, "topics", "create", TOPIC, "--partitions", "2")
        busy = run("", "migrate", "--to", connect, "--data", str(alone.data_dir))
        assert busy.returncode == 1 and "stop it first" in busy.stderr
    absent = run("", "migrate", "--to", "127.0.0.1:1", "--data", str(tmp_path / "absent"))
    assert absent.returncode == 1 and "absent does not exist" in absent.stderr
    nowhere = run(
        "", "migrate", "--to", "127.0.0.1:1/x", "--data", str(alone.data_dir), "--timeout", "1"
    )
    assert nowhere.returncode == 1 and "Traceback" not in nowhere.stderr, nowhere.stderr
    ran = run("", "migrate", "--to", connect, "--data", str(alone.data_dir))
    assert (
        ran.returncode == 0
        and "migrated 1 topic and " in ran.stdout
        and "next: millstream serve" in ran.stderr
    )
    again = run("", "migrate", "--to", connect, "--data", str(alone.data_dir))
    assert again.returncode == 1 and "already" in again.stderr
    # Not finished after all: it can be taken back, and begun anew in the same place.
    store = alone.data_dir / "millstream.store"
    (alone.data_dir / "millstream.store.migrated").rename(store)
    undone = run("", "migrate", "--to", connect, "--data", str(alone.data_dir), "--undo")
    assert undone.returncode == 0 and "can start alone again" in undone.stdout, undone.stderr
    with LocalBroker(tmp_path / "b", {}) as alone:
        done(alone.bootstrap, "topics", "describe", TOPIC)
    assert run("", "migrate", "--to", connect, "--data", str(alone.data_dir)).returncode == 0
    with LocalBroker(tmp_path / "b", {"zookeeper.connect": connect}) as member:
        assert (
            len(json.loads(done(member.bootstrap, "topics", "describe", TOPIC, "--format", "json")))
            == 1
        )
