"""``millstream up``: a cluster of real processes, what it tells, what it writes down, and what it
refuses.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.up.command import _plan
from millstream.cli.up.requests import _waits_for_others
from millstream.cli.up.status import JsonStatus, death
from millstream.client.errors import ClientError
from millstream.cluster.coordinators.internal_topics import (
    OFFSETS,
    TRANSACTIONS,
    desired_replication_factor,
)
from millstream.core.config import BrokerConfig
from millstream.local import cluster_file
from millstream.local.broker import LocalBroker
from millstream.local.cluster import cluster_settings
from millstream.local.cluster_file import ClusterFile, Entry, State, ZooKeeperEntry
from millstream.local.foreground import own_directory
from millstream.local.node import LocalNode
from millstream.local.probes import broker_answers
from millstream.local.zookeeper import LocalZooKeeper, free_ports, server_mode
from support.local_up import Row, Up
from support.processes import alive, wait_until
from support.zookeeper import skip_without_zookeeper


def answers(entry: Entry) -> bool:
    return broker_answers(entry.host, entry.port)


def broker_states(data: Path) -> list[State]:
    """None of them while the file does not read."""
    try:
        file = cluster_file.read(data)
    except ClientError:
        return []
    return [one.state for one in file.brokers] if file is not None else []


def test_a_cluster_is_started_changed_and_stopped_in_good_order(
    up: Callable[..., Up], command: Callable[..., Any]
) -> None:
    """The whole life of one, in one test, because each start takes seconds."""
    one = up("--brokers", "2", "--port", "0", "--zookeeper-port", "0")
    ready = one.until(event="ready")
    file = one.file()
    assert [entry.node_id for entry in file.brokers] == [0, 1]
    assert ready["bootstrap"] == file.bootstrap == ",".join(entry.address for entry in file.brokers)
    assert all(entry.state is State.UP and entry.pid and answers(entry) for entry in file.brokers)
    (zookeeper,) = file.zookeepers
    assert server_mode(zookeeper.host, zookeeper.port) == "standalone"
    assert file.zookeeper_connect == zookeeper.address and file.supervisor == one.process.pid

    data = str(one.data)
    second = command("up", "--data", data, text=True)
    assert (second.returncode, second.stdout) == (1, "")
    assert (
        second.stderr
        == f"error: a cluster is already running in {data}; stop it, or choose another --data\n"
    )

    same = command("zookeeper", "--port", "0", "--data", f"{data}/zookeeper-1", text=True)
    assert (same.returncode, same.stdout) == (1, "")
    assert same.stderr.startswith(
        f"error: a ZooKeeper server is already running in {data}/zookeeper-1; stop it"
    )

    added = command("up", "--data", data, "--add", text=True)
    assert added.returncode == 0, added.stderr
    third = one.file().broker(2)
    assert third is not None and third.state is State.UP and answers(third)
    assert added.stdout.startswith(f"broker 2 is up: {third.address}, log ")

    # Somebody edits the file, and not well: nothing of what runs depends on it.
    (one.data / cluster_file.FILE).write_text('{"half')
    assert "it is not JSON" in one.until(event="remark")["text"]
    wait_until(lambda: broker_states(one.data) == [State.UP] * 3, "the file to be written anew")

    victim = one.file().brokers[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    died = one.until(event="died", node_id=1, kind="broker")
    assert died["exit_code"] == -9 and any(
        "millstream ready: node 1" in line for line in died["tail"]
    )
    # Not by itself.
    dead = one.file().broker(1)
    assert dead is not None and (dead.state, dead.pid) == (State.DEAD, None)
    again = command("up", "--data", data, "--start", "1", "--format", "json", text=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["node_id"] == 1 and answers(one.file().brokers[1])
    stopped = command("up", "--data", data, "--stop", "2", text=True)
    assert stopped.returncode == 0 and one.file().brokers[2].state is State.STOPPED
    assert "is not running" in command("up", "--data", data, "--stop", "2", text=True).stderr
    assert "has no broker 9" in command("up", "--data", data, "--start", "9", text=True).stderr

    pids, before = one.pids(), one.file()
    assert one.end() == 0
    assert not any(alive(pid) for pid in pids)
    last = [(row["kind"], row["node_id"]) for row in one.seen(event="state", state="stopped")][-3:]
    assert last == [("broker", 0), ("broker", 1), ("zookeeper", 1)]
    after = one.file()
    assert after.supervisor is None and all(
        entry.pid is None for entry in (*after.brokers, *after.zookeepers)
    )

    later = up()  # all that was here before, where it was
    later.until(event="ready")
    assert [entry.address for entry in later.file().brokers] == [
        entry.address for entry in before.brokers
    ]
    assert later.file().zookeeper_connect == before.zookeeper_connect
    assert later.end(signal.SIGINT) == 0


def test_a_zookeeper_server_that_died_is_started_again_when_somebody_asks(
    up: Callable[..., Up], command: Callable[..., Any]
) -> None:
    one = up("--brokers", "1", "--zookeepers", "3", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    data = str(one.data)
    victim = one.file().zookeepers[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    one.until(event="died", kind="zookeeper", node_id=2)
    alone = command("zookeeper", "--port", "0", "--data", f"{data}/zookeeper-2", text=True)
    assert alone.returncode == 1
    assert (
        f"start it with `millstream up --start zookeeper-2 --data {os.path.relpath(data)}`"
        in alone.stderr
    )
    # What cannot be started is told, and the others go on.
    with own_directory(one.data / "zookeeper-2", "a test"):
        refused = command("up", "--data", data, "--start", "zookeeper-2", text=True)
    assert refused.stderr.startswith("error: zookeeper 2 did not start; see ")
    assert one.seen(event="died", node_id=2)[-1]["tail"] == [
        f"a ZooKeeper server is already running in {data}/zookeeper-2; stop it, or choose another --data"
    ]
    again = command("up", "--data", data, "--start", "zookeeper-2", text=True)
    assert again.stdout.startswith(f"zookeeper 2 is up: {victim.address}, log "), again.stderr
    assert server_mode(victim.host, victim.port) == "follower"

    stopped = command("up", "--data", data, "--stop", "zookeeper-3", "--format", "json", text=True)
    assert json.loads(stopped.stdout)["state"] == "stopped", stopped.stderr

    def states() -> list[State]:
        return [entry.state for entry in one.file().zookeepers]

    # The others may have to agree on a leader first.
    wait_until(lambda: states() == [State.UP, State.UP, State.STOPPED], "two of three to serve")
    missing = command("up", "--data", data, "--stop", "zookeeper-9", text=True)
    assert "has no ZooKeeper server 9" in missing.stderr
    assert one.end() == 0


@pytest.mark.parametrize(("kind", "node"), [("broker", "2"), ("zookeeper", "zookeeper-2")])
def test_whoever_reads_of_a_death_reads_how_to_start_it_again(
    tmp_path: Path, kind: str, node: str
) -> None:
    directory = tmp_path / f"{kind}-2"
    process = LocalBroker(directory) if kind == "broker" else LocalZooKeeper(directory)
    process.exit_code = -9
    told = death(
        LocalNode(kind, Entry(2, "127.0.0.1", 1, log="a.log"), process, tail="its last words")
    )
    assert told == (
        f"{kind} 2 died (signal 9); the end of a.log:\n  | its last words\n"
        f"  start it again: millstream up --start {node} --data {os.path.relpath(tmp_path)}"
    )


@pytest.mark.parametrize(
    ("state", "mode"), [(State.UP, "leader"), (State.STOPPED, None), (State.DEAD, None)]
)
def test_only_a_server_that_serves_has_a_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: State, mode: str | None
) -> None:
    server = LocalZooKeeper(tmp_path, 1)
    JsonStatus().changed(
        LocalNode("zookeeper", Entry(1, "127.0.0.1", 1, state=state), server, mode="leader")
    )
    assert json.loads(capsys.readouterr().out).get("mode") == mode


def test_a_broker_that_cannot_start_takes_all_with_it_and_is_told(up: Callable[..., Up]) -> None:
    one = up("--brokers", "2", "--port", "0", "--zookeeper-port", "0", "--set", "no.such.setting=1")
    died = one.until(event="died", kind="broker")
    assert "no.such.setting" in died["tail"][-1]
    assert one.process.wait(60) == 1
    errors = one.errors()
    assert re.match(r"error: broker [01] did not start: ", errors) and "no.such.setting" in errors
    assert one.pids() == []
    # It has no data, and nothing that was asked for then is kept.
    assert [entry.node_id for entry in plan(one.data, brokers=1).brokers] == [0]


def test_who_ends_because_a_broker_cannot_start_does_not_say_how_to_start_that_one(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    skip_without_zookeeper()
    words = (
        "--brokers",
        "2",
        "--port",
        "0",
        "--zookeeper-port",
        "0",
        "--data",
        str(tmp_path / "c"),
    )
    ran = command("up", *words, "--set", "no.such.setting=1", text=True)
    assert ran.returncode == 1 and "died (exit code" in ran.stdout
    assert "start it again" not in ran.stdout + ran.stderr


def test_a_process_that_does_not_answer_is_told_and_so_is_its_return(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    """With a ZooKeeper of somebody else's, which is left alone."""
    with LocalZooKeeper(tmp_path / "zookeeper") as server:
        one = up("--brokers", "1", "--port", "0", "--zookeeper", f"{server.address}/mine")
        one.until(event="ready")
        file = one.file()
        assert file.zookeepers == [] and file.zookeeper_connect == f"{server.address}/mine"
        pid = file.brokers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        one.until(event="state", kind="broker", state="silent")
        os.kill(pid, signal.SIGCONT)
        wait_until(
            lambda: len(one.seen(kind="broker", state="up")) == 2, "the broker to answer again"
        )
        assert one.end() == 0
        assert server_mode(server.host, server.port) == "standalone"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to help")
def test_nothing_is_left_behind_by_a_command_that_is_killed(up: Callable[..., Up]) -> None:
    one = up("--brokers", "1", "--port", "0", "--zookeeper-port", "0")
    one.until(event="ready")
    pids = one.pids()
    assert len(pids) == 2
    one.process.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids), "all processes to end", 60)


# ---- what is refused ----


def test_ports_in_use_are_told_before_anything_is_started(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        broker, server = first.getsockname()[1], second.getsockname()[1]
        words = ("--port", str(broker), "--zookeeper-port", str(server), "--brokers", "1")
        ran = command("up", "--data", str(tmp_path / "c"), *words, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(
        f"error: ports in use on 127.0.0.1: {broker} (broker 0), {server} (zookeeper 1); choose other ports with --port"
    )
    assert not (tmp_path / "c" / "broker-0").exists()


def test_a_server_that_runs_in_one_of_its_directories_is_told_before_anything_is_started(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    skip_without_zookeeper()
    directory = tmp_path / "c" / "zookeeper-1"
    with LocalZooKeeper(directory):
        ran = command(
            "up", "--data", str(tmp_path / "c"), "--port", "0", "--zookeeper-port", "0", text=True
        )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(
        f"error: a ZooKeeper server is already running in {directory}; stop it"
    )
    assert not (tmp_path / "c" / "broker-0").exists()


def test_one_of_several_servers_is_not_taken_for_the_only_one(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    """As where cluster.json was moved away."""
    (tmp_path / "zookeeper-1" / "data").mkdir(parents=True)
    (tmp_path / "zookeeper-1" / "data" / "myid").write_text("1\n")
    ran = command("up", "--data", str(tmp_path), "--port", "0", "--zookeeper-port", "0", text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert (
        "belongs to a member of an ensemble, which must not run alone; start the whole ensemble with"
        in ran.stderr
    )


def test_a_server_of_an_ensemble_that_died_waits_for_the_others() -> None:
    states = [State.STARTING, State.DEAD, State.DEAD]
    servers = [
        ZooKeeperEntry(n, "127.0.0.1", 1, pid=n if state is State.STARTING else None, state=state)
        for n, state in enumerate(states, 1)
    ]
    cluster = ClusterFile(zookeepers=servers)
    assert _waits_for_others(cluster, cluster_file.ZOOKEEPER, servers[0])
    assert not _waits_for_others(cluster, cluster_file.BROKER, servers[0])
    servers[1].pid, servers[1].state = 2, State.STARTING
    assert not _waits_for_others(cluster, cluster_file.ZOOKEEPER, servers[0])


@pytest.mark.parametrize("where", ["", "nowhere"])
@pytest.mark.parametrize("words", [("--add",), ("--start", "0"), ("--stop", "0")])
def test_a_broker_is_added_only_to_a_cluster_that_runs(
    tmp_path: Path, command: Callable[..., Any], where: str, words: tuple[str, ...]
) -> None:
    data = tmp_path / where
    ran = command("up", "--data", str(data), *words, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(
        f"error: no cluster is running in {data}; start it with `millstream up`"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--add", "--stop", "1"), "--add and --stop cannot be used together"),
        (("--start", "0", "--stop", "1"), "--start and --stop cannot be used together"),
        (("--start", "zk-1"), "'zk-1' is not a broker (2) or a ZooKeeper server (zookeeper-2)"),
        (
            ("--add", "--set", "broker.rack=a"),
            "--set cannot be used with --add",
        ),
        (
            ("--set", "node.id=4"),
            "node.id cannot be the same for every broker: brokers are numbered from 0",
        ),
        (("--set", "broker.id=4"), "broker.id cannot be the same for every broker"),
        (("--set", "listeners=PLAINTEXT://127.0.0.1:7777"), "choose the ports with --port"),
        (("--set", "log.dirs=/tmp/a"), "choose the directory with --data"),
        (("--set", "log.dir=/tmp/a"), "choose the directory with --data"),
        (("--set", "zookeeper.connect=zk:2181"), "choose a ZooKeeper with --zookeeper"),
    ],
)
def test_what_would_be_ignored_is_refused(
    tmp_path: Path, command: Callable[..., Any], words: tuple[str, ...], complaint: str
) -> None:
    ran = command("up", "--data", str(tmp_path), *words, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert complaint in " ".join(ran.stderr.split())


# ---- what is planned ----


def plan(data: Path, **options: Any) -> ClusterFile:
    every = dict.fromkeys(("brokers", "zookeepers", "zookeeper", "port", "zookeeper_port"))
    return _plan(data, **(every | options))


def test_ports_follow_each_other_from_those_that_everybody_knows(tmp_path: Path) -> None:
    made = plan(tmp_path, zookeepers=3)
    assert [one.port for one in made.brokers] == [9092, 9093, 9094]
    assert [(one.port, one.peer_port, one.election_port) for one in made.zookeepers] == [
        (2181, 2888, 3888),
        (2182, 2889, 3889),
        (2183, 2890, 3890),
    ]
    assert made.zookeeper_connect == "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A directory in which two brokers and one server have run."""
    brokers = [Entry(0, "127.0.0.1", 7000), Entry(1, "127.0.0.1", 7001)]
    servers = [ZooKeeperEntry(1, "127.0.0.1", 7100, peer_port=7200, election_port=7300)]
    cluster_file.write(tmp_path, ClusterFile("127.0.0.1:7100", "", None, 7000, brokers, servers))
    for node in (0, 1):
        (tmp_path / f"broker-{node}" / "data").mkdir(parents=True)
        (tmp_path / f"broker-{node}" / "data" / "meta.properties").touch()
    (tmp_path / "zookeeper-1" / "data" / "version-2").mkdir(parents=True)
    return tmp_path


def test_what_never_came_up_is_not_taken_for_data(earlier: Path) -> None:
    """As after a start that failed: a setting that does not exist, no Java."""
    (earlier / "broker-1" / "data" / "meta.properties").unlink()
    assert [one.node_id for one in plan(earlier).brokers] == [0, 1]
    assert [one.node_id for one in plan(earlier, brokers=1).brokers] == [0]
    (earlier / "zookeeper-1" / "data" / "version-2").rmdir()
    with pytest.raises(ClientError, match="has 1 ZooKeeper server, not 3"):
        plan(earlier, zookeepers=3)  # broker 0 is part of its tree, even if that is lost
    (earlier / "broker-0" / "data" / "meta.properties").unlink()
    assert len(plan(earlier, zookeepers=3).zookeepers) == 3
    elsewhere = plan(earlier, zookeeper="elsewhere:2181")
    assert (elsewhere.zookeeper_connect, elsewhere.zookeepers) == ("elsewhere:2181", [])
    assert plan(earlier).zookeeper_connect == "127.0.0.1:7100"


def test_a_later_start_is_as_the_one_before_but_for_what_is_asked(earlier: Path) -> None:
    assert [one.port for one in plan(earlier).brokers] == [7000, 7001]
    assert [one.port for one in plan(earlier, brokers=4).brokers] == [7000, 7001, 7002, 7003]
    moved = plan(earlier, port=9000, zookeeper_port=9100)
    assert [one.port for one in moved.brokers] == [9000, 9001]
    assert moved.zookeeper_connect == "127.0.0.1:9100"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"brokers": 1}, "has 2 brokers, with data on 0, 1"),
        ({"zookeepers": 3}, "has 1 ZooKeeper server, not 3"),
        ({"zookeeper": "elsewhere:2181"}, "has its own ZooKeeper"),
    ],
)
def test_what_would_leave_data_behind_is_refused(
    earlier: Path, options: Row, complaint: str
) -> None:
    with pytest.raises(ClientError, match=complaint):
        plan(earlier, **options)


def test_brokers_with_data_are_found_where_the_file_is_gone(earlier: Path) -> None:
    """Or an old copy. Left out, they would leave partitions without a leader."""
    for name in ("broker-4", "broker-12", "broker-3.removed", "broker-03", "broker-x"):
        (earlier / name / "data").mkdir(parents=True)
        (earlier / name / "data" / "meta.properties").touch()
    (earlier / "broker-5" / "data").mkdir(parents=True)  # never came up
    assert [one.node_id for one in plan(earlier).brokers] == [0, 1, 4, 12]
    (earlier / cluster_file.FILE).unlink()
    found = plan(earlier, port=39092).brokers
    assert [(one.node_id, one.port) for one in found] == [
        (0, 39092),
        (1, 39093),
        (4, 39096),
        (12, 39104),
    ]
    assert [one.node_id for one in plan(earlier, brokers=5).brokers] == [0, 1, 4, 12, 13]
    with pytest.raises(
        ClientError, match="has 4 brokers, with data on 0, 1, 4, 12; use --brokers 4 or omit it"
    ):
        plan(earlier, brokers=3)


@pytest.mark.parametrize("options", [{"zookeepers": 3}, {"zookeeper": "elsewhere:2181"}])
def test_servers_with_metadata_are_found_where_the_file_is_gone(
    earlier: Path, options: Row
) -> None:
    """Two new ones beside one that has it could agree that there is nothing."""
    (earlier / cluster_file.FILE).unlink()
    with pytest.raises(
        ClientError, match=r"already has 1 ZooKeeper server with.*; use --zookeepers 1, or"
    ):
        plan(earlier, **options)
    assert len(plan(earlier).zookeepers) == len(plan(earlier, zookeepers=1).zookeepers) == 1


def test_a_broker_that_left_while_nobody_ran_the_cluster_is_not_found_again(earlier: Path) -> None:
    file = cluster_file.read(earlier)
    assert file is not None
    file.brokers[1].state = State.LEAVING
    cluster_file.write(earlier, file)
    for _ in range(2):  # also where the first start came no further
        assert [one.node_id for one in plan(earlier).brokers] == [0]
    assert (earlier / "broker-1.removed" / "data").exists() and not (earlier / "broker-1").exists()


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_a_cluster_keeps_as_many_copies_as_it_can(
    brokers: int, replicas: str, in_sync: str
) -> None:
    settings = cluster_settings(brokers)
    assert settings == {"default.replication.factor": replicas, "min.insync.replicas": in_sync}
    config = BrokerConfig.from_texts(settings)
    for name in (OFFSETS, TRANSACTIONS):  # also when the cluster grows
        assert desired_replication_factor(config, name, brokers) == int(replicas)
        assert desired_replication_factor(config, name, brokers + 2) == 3


def test_only_a_broker_that_answers_counts_as_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not broker_answers("127.0.0.1", silent.getsockname()[1], timeout_s=0.2)
    assert not broker_answers("127.0.0.1", free_ports(1)[0])
