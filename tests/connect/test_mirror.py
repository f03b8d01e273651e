"""Two real clusters and a mirror on Spark: what arrives, what does not come back, where groups go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from mirror_world import as_sent, commit, committed, failures, read, read_on, run_once

from millstream.cli.local_broker import LocalBroker
from millstream.client.admin import Admin
from millstream.client.producer import Producer
from millstream.connect.mirror_policy import HEADER, Origin
from millstream.connect.mirror_settings import TIMES
from millstream.core.types import TopicPartition

pytestmark = pytest.mark.timeout(300)

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.check.interval.ms": 86_400_000,
}


class Clusters(NamedTuple):
    a: str
    b: str


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    brokers = [LocalBroker(tmp_path_factory.mktemp(name), SETTINGS).start() for name in "ab"]
    yield Clusters(*(one.bootstrap for one in brokers))
    for one in brokers:
        one.stop()


def ids(clusters: Clusters) -> tuple[str, str]:
    found = []
    for one in clusters:
        with Admin(one) as admin:
            found.append(admin.cluster.describe().id)
    return found[0], found[1]


def test_everything_of_a_record_arrives_and_nothing_comes_back(
    spark: Any, clusters: Clusters, tmp_path: Path
) -> None:
    a, b = clusters
    settings = {"retention.ms": "-1", "max.message.bytes": "2000000"}
    with Admin(a) as admin:
        admin.topics.create(
            "orders", partitions=2, configs=settings | {"message.timestamp.after.max.ms": "4102444800000"}
        )
        admin.topics.create("unused", partitions=3)
    with Admin(b) as admin:
        admin.topics.create("orders", partitions=1)
    headers = [("h", b"1"), ("h", None), ("\u00e9", b"")]
    with Producer(a) as producer:
        producer.send("orders", b"v0", key=b"k", partition=0, timestamp_ms=1, headers=headers)
        producer.send("orders", None, key=b"k", partition=0, timestamp_ms=4_102_444_800_000)
        producer.send("orders", b"v2", partition=1, timestamp_ms=1_700_000_000_123)
        producer.send("orders", None, partition=1)
        producer.send("orders", b"", key=b"", partition=1)
    with Producer(a, transactional_id="t") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("orders", b"gone", partition=0)
            producer.flush()
            raise ZeroDivisionError
        with producer.transaction():
            producer.send("orders", b"kept", partition=0)
    with Producer(b) as producer:
        for number in range(5):
            producer.send("orders", b"b%d" % number, partition=0)

    given: dict[str, Any] = {"topics": "orders,unused", "both": True}
    assert not failures(run_once(spark, a, b, tmp_path, **given))
    assert not failures(run_once(spark, a, b, tmp_path, **given)), "a second time"

    assert list(map(as_sent, read(b, "a.orders"))) == list(map(as_sent, read(a, "orders")))
    assert list(map(as_sent, read(a, "b.orders"))) == list(map(as_sent, read(b, "orders")))
    first = read(b, "a.orders")[0]
    assert first.headers == (*headers, (HEADER, Origin(ids(clusters)[0], "orders", 0, 0).encode()))
    assert all(one.value != b"gone" for one in read(b, "a.orders"))
    for bootstrap, names in ((a, ["b.orders", "orders", "unused"]), (b, ["a.orders", "a.unused", "orders"])):
        with Admin(bootstrap) as admin:
            assert [one for one in admin.topics.names() if not one.startswith("__")] == names
    with Admin(b) as admin:
        assert len(admin.topics.get("a.unused").partitions) == 3
        assert admin.configs.overrides("topic", "a.orders") == {**settings, **TIMES}


def test_a_group_goes_on_in_the_other_cluster(spark: Any, clusters: Clusters, tmp_path: Path) -> None:
    a, b = clusters
    group = "movers"
    with Admin(a) as admin, Admin(b) as other:
        admin.topics.create("trips", partitions=2)
        other.topics.create("trips", partitions=1)
    with Producer(a, transactional_id="trips") as producer:
        for number in range(20):  # each followed by a marker, which is an offset without a record
            with producer.transaction():
                producer.send("trips", b"a%d" % number, partition=number % 2)
    with Producer(b) as producer:
        for number in range(10):
            producer.send("trips", b"b%d" % number)
    given: dict[str, Any] = {"topics": "trips", "both": True, "groups": group}
    assert not failures(run_once(spark, a, b, tmp_path, **given))

    here = read(a, "trips")
    first = [one for one in here if one.partition == 0]
    commit(
        a,
        group,
        {TopicPartition("trips", 0): first[4].offset, TopicPartition("trips", 1): here[-1].offset + 2},
    )
    commit(a, group, {TopicPartition("b.trips", 0): read(a, "b.trips")[7].offset})
    with Admin(a) as admin:
        admin.topics.add_partitions("trips", 3)
    with Producer(a) as producer:
        producer.send("trips", b"new", partition=2)
        producer.send("trips", b"after", partition=1)
    assert not failures(run_once(spark, a, b, tmp_path, **given))

    values = sorted(one.value for one in read_on(b, ["a.trips", "trips"], group))
    unread = [b"a8", b"a10", b"a12", b"a14", b"a16", b"a18", b"after", b"b7", b"b8", b"b9"]
    assert [one for one in values if one != b"new"] == sorted(unread)
    # It has read in b now: going back, and mirroring again, moves nothing back.
    there = committed(b, group)
    assert not failures(run_once(spark, a, b, tmp_path, **given))
    assert committed(b, group) == there
    assert committed(a, group)[TopicPartition("trips", 0)] == first[-1].offset + 1
    assert read_on(a, ["trips", "b.trips"], group) == []


def test_topics_that_keep_their_names_are_shared_without_loops(
    spark: Any, clusters: Clusters, tmp_path: Path
) -> None:
    a, b = clusters
    group, place = "sharers", TopicPartition("shared", 0)
    with Admin(a) as admin:
        admin.topics.create("shared", partitions=1, configs={"retention.ms": "100000000000"})
    given: dict[str, Any] = {"topics": "shared", "both": True, "naming": "identity", "groups": group}
    for turn in range(2):
        for bootstrap, name in ((a, "a"), (b, "b")):
            with Producer(bootstrap) as producer:
                for number in range(3):
                    forwarded = [(HEADER, Origin("elsewhere", "other", 0, 5).encode())] if number else None
                    producer.send("shared", f"{name}{turn}{number}".encode(), headers=forwarded)
            if turn == 0 and name == "a":
                assert not failures(run_once(spark, a, b, tmp_path, **given))
        assert not failures(run_once(spark, a, b, tmp_path, **given))
    everything = sorted(
        f"{name}{turn}{number}".encode() for name in "ab" for turn in (0, 1) for number in range(3)
    )
    for bootstrap in clusters:
        assert sorted(one.value for one in read(bootstrap, "shared")) == everything
        with Admin(bootstrap) as admin:
            assert admin.configs.overrides("topic", "shared")["retention.ms"] == "100000000000"

    here = read(a, "shared")
    commit(a, group, {place: here[8].offset})
    assert not failures(run_once(spark, a, b, tmp_path, **given))
    unread = {one.value for one in here[8:]}
    got = {one.value for one in read(b, "shared") if one.offset >= committed(b, group)[place]}
    assert unread <= got, "nothing is skipped"
    commit(a, group, {place: here[-1].offset + 1})
    assert not failures(run_once(spark, a, b, tmp_path, **given))
    assert read_on(b, "shared", group) == [], "and nothing is repeated when all of it was read"


def test_records_that_were_deleted_before_they_were_mirrored_are_told(
    spark: Any, clusters: Clusters, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = clusters
    with Admin(a) as admin:
        admin.topics.create("short", partitions=1)
        for values in (b"01", b"2345"):
            with Producer(a) as producer:
                for value in values:
                    producer.send("short", bytes([value]))
            if values == b"01":
                assert not failures(run_once(spark, a, b, tmp_path, topics="short"))
        admin.offsets.delete_records({TopicPartition("short", 0): 4})
    (told,) = failures(run_once(spark, a, b, tmp_path, topics="short"))
    assert "offsets 2 to 3 (2 offsets) were deleted" in told
    assert [one.value for one in read(b, "a.short")] == [b"0", b"1"]
    assert not failures(run_once(spark, a, b, tmp_path, topics="short", on_loss="skip"))
    assert [one.value for one in read(b, "a.short")] == [b"0", b"1", b"4", b"5"]
    assert "offsets 2 to 3 (2 offsets) were deleted" in capfd.readouterr().err


def test_a_cluster_is_not_mirrored_onto_itself(spark: Any, clusters: Clusters, tmp_path: Path) -> None:
    (told,) = failures(run_once(spark, clusters.a, clusters.a, tmp_path, topics="orders"))
    assert "are the same cluster" in told
