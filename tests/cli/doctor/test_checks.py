"""``millstream doctor``: what it finds in clusters that are well and in clusters that are not."""

from __future__ import annotations

import json

import pytest

from millstream.cli.doctor.checks import Level, _disk
from millstream.client.admin.cluster import LogDirectory
from millstream.testing import Cluster, Kafka, broker


@pytest.fixture
def diagnose(quick_command):
    def run(kafka: Kafka, *words: str) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = {}
        for one in json.loads(
            quick_command("doctor", "--format", "json", *words, bootstrap=kafka.bootstrap).stdout
        ):
            found.setdefault(one["check"], []).append(one)
        return found

    return run


def levels(found: list[dict[str, str]]) -> set[str]:
    return {one["level"] for one in found}


def test_one_broker_that_is_well(quick_command, diagnose) -> None:
    with broker() as kafka:
        kafka.produce("orders", [b"1"])
        found = diagnose(kafka)
        for check in ("listeners", "controller", "partitions", "transactions"):
            assert levels(found[check]) == {"OK"}, check
        assert [one["message"] for one in found["topics"]] == [
            "a single broker: a disk failure loses data"
        ]
        assert {"disk", "open files", "file system"} <= found.keys()
        shown = quick_command("doctor", bootstrap=kafka.bootstrap)
        assert (
            "WARN  a single broker: a disk failure loses data\n      -> for durable data"
            in shown.stdout
        )
        assert quick_command("doctor", "--strict", bootstrap=kafka.bootstrap).returncode == 1


def test_rules_and_a_broker_that_is_down(millstream_cluster: Cluster, diagnose) -> None:
    cluster = millstream_cluster
    cluster.topic("good")
    cluster.wait_in_sync("good", 3)
    well = diagnose(cluster)
    assert levels(well["topics"]) == levels(well["writes"]) == {"OK"}
    cluster.topic("thin", replicas=2, unclean_leader_election_enable="true")
    cluster.topic("weak", min_insync_replicas=1)
    cluster.topic("stiff", min_insync_replicas=3)
    cluster.brokers[2].kill()
    found = diagnose(cluster)
    told = {one["message"]: one["advice"] for one in found["topics"]}
    more = "`millstream reassign execute --topic NAME --replication-factor 3`"
    assert told["fewer than 3 replicas: thin"] == more
    assert "min.insync.replicas is 1: with acks=all a record may be on only one disk: weak" in told
    assert any(one.endswith(": stiff, thin") and "writes fail" in one for one in told)
    assert any(
        one.startswith("unclean.leader.election.enable") and one.endswith(": thin") for one in told
    )
    (partitions,) = found["partitions"]
    assert (partitions["level"], "broker 2 is down" in partitions["message"]) == ("WARN", True)
    assert levels(found["listeners"]) == {"OK"}
    (writes,) = found["writes"]
    assert writes["level"] == "FAIL"
    assert "1 partition refuses acks=all" in writes["message"] and "stiff-0" in writes["message"]
    assert "good-0" not in writes["message"] and "weak-0" not in writes["message"]
    assert writes["advice"].startswith("start broker 2; or accept less safety")


def test_no_more_replicas_are_missed_than_a_topic_has(diagnose) -> None:
    with broker() as kafka:
        kafka.topic("stiff", min_insync_replicas=2)
        kafka.produce("stiff", [b"1"])
        assert levels(diagnose(kafka)["writes"]) == {"OK"}


def test_an_advertised_address_that_cannot_be_reached(quick_command) -> None:
    with broker({"advertised.listeners": "PLAINTEXT://127.0.0.1:9"}) as kafka:
        shown = quick_command("doctor", "--timeout", "2", bootstrap=kafka.bootstrap)
        assert shown.returncode == 1
        assert "broker 0 advertises 127.0.0.1:9, which is unreachable" in shown.stdout
        assert "-> set advertised.listeners" in shown.stdout


@pytest.mark.parametrize(("free", "level"), [(50, Level.ok), (10, Level.warn), (1, Level.fail)])
def test_disks(free: int, level: Level) -> None:
    assert _disk(LogDirectory(0, "/data", True, 100, free)).level == level
