"""From one broker to a cluster: the same topics, records and groups, then more brokers, and
partitions that move to them.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from millstream.broker.migration.to_zookeeper import migrate_to_zookeeper
from millstream.client import Admin, Consumer, Producer
from millstream.client.admin.reassignment_plan import moves, spread
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from millstream.local.zookeeper import LocalZooKeeper
from support.clusters import QUICK
from support.processes import wait_until

RECORDS = 500


def produce(bootstrap: str, first: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(first, first + RECORDS):
            producer.send("orders", str(number), key=str(number))


def read(bootstrap: str, group: str | None = None) -> list[int]:
    with Consumer(bootstrap, "orders", group=group, until_end=True) as consumer:
        return sorted(int(record.value or b"") for record in consumer)


def test_a_single_broker_becomes_a_cluster_that_takes_its_partitions_over(
    zookeeper: LocalZooKeeper, tmp_path: Path
):
    settings = {name: value for name, value in QUICK.items() if not name.startswith("zookeeper.")}
    with LocalBroker(tmp_path / "b0", settings) as alone:
        with Admin(alone.bootstrap) as admin:
            admin.topics.create("orders", partitions=6, configs={"retention.ms": "-1"})
            before = admin.topics.get("orders").id
        produce(alone.bootstrap, 0)
        assert read(alone.bootstrap, "billing") == list(range(RECORDS))
    connect = f"{zookeeper.address}/{uuid.uuid4().hex}"
    asyncio.run(migrate_to_zookeeper(connect, [str(alone.data_dir)], timeout_s=20))
    settings = {**QUICK, "zookeeper.connect": connect}
    first = LocalBroker(tmp_path / "b0", {**settings, "node.id": 0})
    others = [LocalBroker(tmp_path / f"b{node}", {**settings, "node.id": node}) for node in (1, 2)]
    try:
        first.start()
        with Admin(first.bootstrap) as admin:
            assert admin.topics.get("orders").id == before
            assert admin.configs.overrides("topic", "orders") == {"retention.ms": "-1"}
        assert read(first.bootstrap) == list(range(RECORDS))
        for other in others:
            other.start()
        move(first.bootstrap)
        produce(others[0].bootstrap, RECORDS)
        assert read(others[1].bootstrap, "billing") == list(
            range(RECORDS, 2 * RECORDS)
        )  # it went on where it was
        wait_until(
            lambda: replicas(first.bootstrap, "__consumer_offsets") == {3},
            "three replicas of the offsets",
        )
        first.kill()
        wait_until(lambda: live(others[0].bootstrap) == {1, 2}, "the first broker to be missed")
        assert read(others[0].bootstrap) == list(range(2 * RECORDS))
    finally:
        for broker in (first, *others):
            broker.kill()


def move(bootstrap: str) -> None:
    """Every partition to all three brokers."""
    with Admin(bootstrap) as admin:
        wanted: dict[TopicPartition, list[int]] = {}
        for tp, nodes in admin.reassignments.current(["orders"]).items():
            wanted[tp] = [*nodes, *(node for node in (0, 1, 2) if node not in nodes)]
        plan = moves(admin.reassignments.current(["orders"]), spread(wanted, [0, 1, 2]))
        assert admin.reassignments.start(plan) == {}
        wait_until(lambda: not admin.reassignments.moving(), "the end of the move")
        for partition in admin.topics.get("orders").partitions:
            assert set(partition.replicas) == set(partition.isr) == {0, 1, 2}


def live(bootstrap: str) -> set[int]:
    with Admin(bootstrap) as admin:
        return {broker.node for broker in admin.protocol.brokers()}


def replicas(bootstrap: str, topic: str) -> set[int]:
    with Admin(bootstrap) as admin:
        return {len(one.isr) for one in admin.topics.get(topic).partitions}
