"""Two real clusters and a mirror on Spark: what arrives, what does not come back, where groups go
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from millstream.client.admin.client import Admin
from millstream.client.producer import Producer
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.connect.mirror.settings import TIMES
from millstream.core.ids import id_text
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from support.connect.mirror_world import (
    Mirrored,
    as_sent,
    commit,
    committed,
    count,
    failures,
    read,
    read_on,
    run_once,
)

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


def send(bootstrap: str, topic: str, values: list[bytes], **more: Any) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value, **more)


def cluster_id(bootstrap: str) -> str:
    with Admin(bootstrap) as admin:
        return admin.cluster.describe().id


def topics(bootstrap: str) -> list[str]:
    with Admin(bootstrap) as admin:
        return [one for one in admin.topics.names() if one.split(".")[-1] in ("orders", "unused")]


def overrides(bootstrap: str, topic: str) -> dict[str, str]:
    with Admin(bootstrap) as admin:
        return admin.configs.overrides("topic", topic)


def send_all_kinds(bootstrap: str) -> None:
    """Records with everything they can have, and without; of two transactions one is aborted."""
    headers = [("h", b"1"), ("h", None), ("\u00e9", b"")]
    with Producer(bootstrap) as producer:
        producer.send("orders", b"v0", key=b"k", partition=0, timestamp_ms=1, headers=headers)
        producer.send("orders", None, key=b"k", partition=0, timestamp_ms=4_102_444_800_000)
        producer.send("orders", b"v2", partition=1, timestamp_ms=1_700_000_000_123)
        producer.send("orders", None, partition=1)
        producer.send("orders", b"", key=b"", partition=1)
    with Producer(bootstrap, transactional_id="t") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("orders", b"gone", partition=0)
            producer.flush()
            raise ZeroDivisionError
        for number in range(20):  # each followed by a marker, which is an offset without a record
            with producer.transaction():
                producer.send("orders", b"a%d" % number, partition=number % 2)


def test_everything_arrives_nothing_comes_back_and_groups_go_on(
    spark: Any, clusters: Clusters, tmp_path: Path
) -> None:
    a, b = clusters
    settings = {"retention.ms": "-1", "max.message.bytes": "2000000"}
    with Admin(a) as admin, Admin(b) as other:
        admin.topics.create(
            "orders",
            partitions=2,
            configs=settings | {"message.timestamp.after.max.ms": "4102444800000"},
        )
        admin.topics.create("unused", partitions=3)
        other.topics.create("orders", partitions=1)
    send_all_kinds(a)
    send(b, "orders", [b"b%d" % number for number in range(10)])
    here = read(a, "orders")
    group, first = "movers", [one for one in here if one.partition == 0]

    with Mirrored(
        spark, a, b, tmp_path, topics="orders,unused", both=True, groups=group
    ) as running:
        running.wait_until(lambda: count(b, "a.orders") >= len(here), "the way there")
        running.wait_until(lambda: count(a, "b.orders") >= 10, "the way back")
        assert list(map(as_sent, read(b, "a.orders"))) == list(map(as_sent, here))
        with Admin(a) as admin:
            origin = Origin(
                cluster_id(a), "orders", 0, 0, id_text(admin.protocol.topic_ids()["orders"])
            )
        assert read(b, "a.orders")[0].headers == (*here[0].headers, (HEADER, origin.encode()))
        positions = {
            TopicPartition("orders", 0): first[5].offset,
            TopicPartition("orders", 1): here[-1].offset + 2,  # behind the last marker
            TopicPartition("b.orders", 0): read(a, "b.orders")[7].offset,
        }
        commit(a, group, positions)
        with Admin(a) as admin:
            admin.topics.add_partitions("orders", 3)
            admin.configs.alter(
                "topic", "orders", {"retention.ms": "7000000000000"}, delete=["max.message.bytes"]
            )
        send(a, "orders", [b"after"], partition=1)
        send(a, "orders", [b"new"], partition=2)
        running.wait_until(lambda: count(b, "a.orders") == len(here) + 2, "a partition more")
        running.wait_until(lambda: len(committed(b, group)) == 3, "the offsets of the group")
        running.wait_until(lambda: len(overrides(b, "a.orders")) == 1 + len(TIMES), "the settings")

        got = sorted(one.value for one in read_on(b, ["a.orders", "orders"], group))
        assert got == sorted(
            [*(one.value for one in first[5:]), b"after", b"new", b"b7", b"b8", b"b9"]
        )
        there = committed(b, group)
        running.wait_until(
            lambda: TopicPartition("orders", 2) in committed(a, group), "the way back of the group"
        )
    assert committed(b, group) == there, "what has been read in b is not moved back by a"
    assert read_on(a, ["orders", "b.orders"], group) == []
    assert overrides(b, "a.orders") == {"retention.ms": "7000000000000", **TIMES}
    assert topics(a) == ["b.orders", "orders", "unused"] and topics(b) == [
        "a.orders",
        "a.unused",
        "orders",
    ]
    assert list(map(as_sent, read(a, "b.orders"))) == list(map(as_sent, read(b, "orders")))


def test_topics_that_keep_their_names_are_shared_without_loops(
    spark: Any, clusters: Clusters, tmp_path: Path
) -> None:
    a, b = clusters
    group, place = "sharers", TopicPartition("shared", 0)
    with Admin(a) as admin:
        admin.topics.create("shared", partitions=1, configs={"retention.ms": "100000000000"})
    elsewhere = [(HEADER, Origin("elsewhere", "other", 0, 5).encode())]
    send(a, "shared", [b"a0", b"a1"])

    with Mirrored(
        spark, a, b, tmp_path, topics="shared", both=True, naming="identity", groups=group
    ) as running:
        running.wait_until(lambda: count(b, "shared") == 2, "the way there")
        send(b, "shared", [b"b0", b"b1"], headers=elsewhere)  # as applications pass headers on
        send(a, "shared", [b"a2"])
        for bootstrap in clusters:
            running.wait_until(lambda at=bootstrap: count(at, "shared") == 5, "all in both")  # type: ignore[misc]
        here = read(a, "shared")
        commit(a, group, {place: here[3].offset})
        running.wait_until(lambda: place in committed(b, group), "the offset of the group")
        at = committed(b, group)[place]
        assert {one.value for one in here[3:]} <= {
            one.value for one in read(b, "shared") if one.offset >= at
        }
        commit(a, group, {place: here[-1].offset + 1})
        running.wait_until(
            lambda: committed(b, group)[place] > read(b, "shared")[-1].offset, "the end"
        )
    for bootstrap in clusters:
        assert sorted(one.value for one in read(bootstrap, "shared")) == [
            b"a0",
            b"a1",
            b"a2",
            b"b0",
            b"b1",
        ]
        assert overrides(bootstrap, "shared")["retention.ms"] == "100000000000"


@pytest.mark.long
def test_records_that_were_deleted_before_they_were_mirrored_are_told(
    spark: Any, clusters: Clusters, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = clusters
    told = "offsets 2 to 3 (2 offsets) were deleted"
    with Admin(a) as admin:
        admin.topics.create("short", partitions=1)
        send(a, "short", [b"0", b"1"])
        assert not failures(run_once(spark, a, b, tmp_path, topics="short"))
        send(a, "short", [b"2", b"3", b"4", b"5"])
        admin.offsets.delete_records({TopicPartition("short", 0): 4})
    (reason,) = failures(run_once(spark, a, b, tmp_path, topics="short"))
    assert told in reason and [one.value for one in read(b, "a.short")] == [b"0", b"1"]

    capfd.readouterr()
    printed = ""
    with Mirrored(spark, a, b, tmp_path, topics="short", on_loss="skip") as running:
        running.wait_until(lambda: count(b, "a.short") == 4, "what is left")

        def is_told() -> bool:
            nonlocal printed
            printed += capfd.readouterr().err
            return f"mirror a-to-b: skipped: short-0: {told}" in printed

        running.wait_until(is_told, "what was skipped is said")
    assert [one.value for one in read(b, "a.short")] == [b"0", b"1", b"4", b"5"]


def test_a_cluster_is_not_mirrored_onto_itself(
    spark: Any, clusters: Clusters, tmp_path: Path
) -> None:
    (told,) = failures(run_once(spark, clusters.a, clusters.a, tmp_path, topics="orders"))
    assert "are the same cluster" in told
