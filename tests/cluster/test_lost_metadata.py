"""ZooKeeper's data is lost, deleted by hand or put back from a copy while brokers run. Nobody meant to delete what is not there any more, so that no
replica is deleted for it, and what is there again is gone on with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient

from millstream.cluster import adoption
from millstream.cluster.cluster_identity import ClusterIdentity, NotThisCluster
from millstream.control import znodes
from millstream.control.image import Change
from millstream.control.topics import NewTopic
from millstream.control.znodes import PartitionState
from millstream.core.types import TopicPartition
from millstream.ports.coordination import Create, Delete, Node, Put
from millstream.testing.coordination import SharedTree
from millstream.wire.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import RawClient, fetch, produce

TOPIC = "orders"
OURS = "ours"


@contextmanager
def operator(cluster: InProcessCluster) -> Iterator[KazooClient]:
    """Who has access to the nodes of this cluster."""
    client = KazooClient(cluster.brokers[0].broker.config.get("zookeeper.connect"))
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def controllers(cluster: InProcessCluster) -> list[int]:
    return [node for node, one in enumerate(cluster.brokers) if one.broker.member.state.active]


def send(cluster: InProcessCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            TOPIC, str(number), on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert (producer.flush(20), failed) == (0, [])


def read(cluster: InProcessCluster, count: int) -> int:
    """How many records there are, of so many that are waited for."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    found: list[object] = []

    def all_there() -> bool:
        found.extend(consumer.consume(count, 0.5))
        return len(found) >= count

    try:
        wait_until(all_there, "the records")
    finally:
        consumer.close()
    return len(found)


def directories(data: Path) -> list[str]:
    return sorted(name for name in os.listdir(data) if name.startswith(TOPIC))


def test_an_emptied_zookeeper_is_not_taken_for_the_cluster(
    in_process_cluster: Callable[..., InProcessCluster], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with in_process_cluster(3) as cluster:
        cluster.create_topic(TOPIC, 2)
        send(cluster, 100)
        read(cluster, 100)  # so that there are groups, too
        with operator(cluster) as client:
            kept = {path: client.get(path)[0] for path in below(client, "/") if not ephemeral(client, path)}
            for name in client.get_children("/"):
                client.delete(f"/{name}", recursive=True)
            wait_until(lambda: not controllers(cluster), "the end of the controller's term")
            wait_until(lambda: "there is no cluster in ZooKeeper, where" in caplog.text, "a word about it")
            # Who has a connection sees nothing of it.
            send(cluster, 100)
            assert read(cluster, 100) == 100
            assert client.get_children("/") == []
            for one in cluster.brokers:
                assert directories(Path(one.settings["log.dirs"])) == [f"{TOPIC}-0", f"{TOPIC}-1"]

            for path, data in kept.items():
                client.ensure_path(path)
                client.set(path, data)
            wait_until(lambda: len(controllers(cluster)) == 1, "a controller")
        for one in cluster.brokers:
            assert directories(Path(one.settings["log.dirs"])) == [f"{TOPIC}-0", f"{TOPIC}-1"]


def below(client: KazooClient, path: str) -> Iterator[str]:
    for name in sorted(client.get_children(path)):
        child = f"{path.rstrip('/')}/{name}"
        yield child
        yield from below(client, child)


def ephemeral(client: KazooClient, path: str) -> bool:
    return bool(client.get(path)[1].ephemeralOwner)


def create(one: InProcessBroker, partitions: int) -> None:
    one.wait(one.broker.controller.create_topics([NewTopic(TOPIC, partitions, 1)]))


@pytest.mark.parametrize(("noted", "kind"), [(False, "stray"), (True, "delete")])
def test_only_a_deletion_that_is_noted_deletes_files(
    noted: bool, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker({"log.dirs": tmp_path, "log.segment.delete.delay.ms": 600_000}) as one:
        create(one, 2)
        image = one.broker.image

        async def vanish() -> None:
            if noted:
                note = znodes.encode_deleted_topic([image.topics[TOPIC].topic_id], [0])
                image.apply(znodes.deleted_topic_path(TOPIC), note)
            image.apply(znodes.topic_path(TOPIC), None)
            await one.broker.replicas.follow([Change(TOPIC)])

        one.wait(vanish())
        assert [name.rpartition("-")[2] for name in directories(tmp_path)] == [kind] * 2
        told = caplog.text.count("is not in the metadata any more, and nobody has deleted it")
        assert told == (0 if noted else 2)


def test_what_was_put_aside_can_be_put_back(tmp_path: Path) -> None:
    """As the documents say: before the broker starts, and when the metadata has the topic again."""
    with InProcessBroker({"log.dirs": tmp_path}) as one:
        create(one, 1)
        records = build_batch([Record(0, 0, None, b"kept")])
        with RawClient(one.bootstrap) as client:
            assert produce(client, TOPIC, 0, records).error_code == 0
        image = one.broker.image

        async def vanish() -> None:
            image.apply(znodes.topic_path(TOPIC), None)
            await one.broker.replicas.follow([Change(TOPIC)])

        one.wait(vanish())
        one.stop()
        (aside,) = directories(tmp_path)
        (tmp_path / aside).rename(tmp_path / aside.partition(".")[0])
        one.start()
        with RawClient(one.bootstrap) as client:
            assert b"kept" in bytes(fetch(client, TOPIC).records)


def test_older_metadata_neither_takes_a_role_away_nor_a_replica(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker({"log.dirs": tmp_path}) as one:
        broker = one.broker
        create(one, 1)
        tp = TopicPartition(TOPIC, 0)
        topic = broker.image.topics[TOPIC]

        async def follow(state: PartitionState, replicas: tuple[int, ...] = (0,)) -> None:
            topic.states[0], topic.replicas[0] = state, replicas
            await broker.replicas.follow([Change(TOPIC)])

        one.wait(follow(PartitionState(0, 5, (0,), partition_epoch=7)))
        one.wait(follow(PartitionState(1, 3, (1,), partition_epoch=4)))
        partition = broker.replicas.leader(TOPIC, 0)
        assert (partition.leader_epoch, partition.tp) == (5, tp)
        one.wait(follow(PartitionState(1, 4, (1,), partition_epoch=4), (1,)))
        assert [name.rpartition("-")[2] for name in directories(tmp_path)] == ["stray"]
        assert "has leader epoch 4 in the metadata, and had 5 before" in caplog.text


@pytest.mark.parametrize(
    ("there", "complaint"),
    [(None, "there is no cluster in ZooKeeper"), ("theirs", "in ZooKeeper is the cluster theirs")],
)
def test_another_tree_is_told_from_ours(there: str | None, complaint: str) -> None:
    async def test() -> None:
        session = await SharedTree().open()
        identity = ClusterIdentity(session, OURS)
        await session.multi([Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(OURS))])
        await session.multi([await identity.check()])
        if there is None:
            await session.multi([Delete(znodes.CLUSTER_ID)])
        else:
            await session.multi([Put(znodes.CLUSTER_ID, znodes.encode_cluster_id(there))])
        with pytest.raises(NotThisCluster, match=complaint):
            await identity.check()

    asyncio.run(test())


def test_a_tree_that_has_gone_back_is_not_gone_on_with() -> None:
    async def test() -> None:
        identity = ClusterIdentity(await SharedTree().open(), OURS)
        assert identity.next_epoch(None) == 1
        identity.saw(7)
        assert identity.next_epoch(Node(znodes.encode_controller_epoch(7), 1, 1)) == 8
        for epoch_node in (None, Node(znodes.encode_controller_epoch(6), 1, 1)):
            with pytest.raises(NotThisCluster, match="is older than what this broker has seen"):
                identity.next_epoch(epoch_node)

    asyncio.run(test())


@pytest.mark.parametrize(("epoch", "kind"), [(3, "stray"), (4, "delete")])
def test_a_broker_that_starts_does_not_delete_for_older_metadata_either(
    epoch: int, kind: str, tmp_path: Path
) -> None:
    """Records of epoch 4 were written here, so there was a leader of that epoch."""
    with InProcessBroker({"log.dirs": tmp_path, "log.segment.delete.delay.ms": 600_000}) as one:
        create(one, 1)
        broker, tp = one.broker, TopicPartition(TOPIC, 0)
        topic = broker.image.topics[TOPIC]

        async def find_moved() -> None:
            broker.logs.logs[tp].epochs.assign(4, 0)
            topic.states[0], topic.replicas[0] = PartitionState(1, epoch, (1,)), (1,)
            adoption.delete_moved(broker.image, broker.logs, node_id=0)

        one.wait(find_moved())
        assert [name.rpartition("-")[2] for name in directories(tmp_path)] == [kind]
