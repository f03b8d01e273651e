"""ZooKeeper's data is lost, deleted by hand or put back from a copy while brokers run. Nobody meant
to delete what is not there any more, so that no replica is deleted for it, and what is there
again is gone on with.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient

from millstream.broker.parts import Parts
from millstream.client.library import close_member
from millstream.cluster.controller.election import ControllerElection
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState
from millstream.cluster.membership import adoption
from millstream.cluster.membership.identity import ClusterIdentity, NotThisCluster
from millstream.control import znodes
from millstream.control.image import Change
from millstream.control.topics import NewTopic
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.coordination import Create, Delete, Put
from millstream.testing.coordination import SharedTree, TreeSession
from millstream.wire.records.batch import Record, build_batch
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
    return [
        node for node, one in enumerate(cluster.brokers) if one.broker.parts.member.state.active
    ]


def registered(cluster: InProcessCluster) -> set[int]:
    """The brokers that the controller knows to be alive."""
    return {
        node
        for one in controllers(cluster)
        for node in cluster.brokers[one].broker.parts.member.state.image.brokers
    }


def newest_term(cluster: InProcessCluster) -> int:
    states = [one.broker.parts.member.state for one in cluster.brokers]
    return max((state.term.epoch for state in states if state.active), default=0)


def send(cluster: InProcessCluster, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True}
    )
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            TOPIC, str(number), on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert (producer.flush(20), failed) == (0, [])


def read(cluster: InProcessCluster, count: int, group: str = "g") -> int:
    """How many records there are, of so many that are waited for."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    found: list[object] = []

    def all_there() -> bool:
        found.extend(consumer.consume(count, 0.5))
        return len(found) >= count

    try:
        wait_until(all_there, "the records")
    finally:
        close_member(consumer)
    return len(found)


def directories(data: Path) -> list[str]:
    return sorted(name for name in os.listdir(data) if name.startswith(TOPIC))


def test_an_emptied_zookeeper_is_not_taken_for_the_cluster(
    in_process_cluster: Callable[..., InProcessCluster],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with in_process_cluster(3) as cluster:
        cluster.create_topic(TOPIC, 2)
        send(cluster, 100)
        read(cluster, 100)  # so that there are groups, too
        with operator(cluster) as client:
            kept = {
                path: client.get(path)[0]
                for path in below(client, "/")
                if not ephemeral(client, path)
            }
            for name in client.get_children("/"):
                client.delete(f"/{name}", recursive=True)
            wait_until(lambda: not controllers(cluster), "the end of the controller's term")
            wait_until(lambda: "ZooKeeper has no cluster where" in caplog.text, "a word about it")
            # Who has a connection sees nothing of it.
            send(cluster, 100)
            assert read(cluster, 100) == 100
            assert client.get_children("/") == []
            for one in cluster.brokers:
                assert directories(Path(one.settings["log.dirs"])) == [f"{TOPIC}-0", f"{TOPIC}-1"]

            # The cluster's id last: with it, brokers believe what they find.
            for path, data in sorted(kept.items(), key=lambda item: item[0].startswith("/cluster")):
                client.ensure_path(path)
                client.set(path, data)
            wait_until(lambda: len(controllers(cluster)) == 1, "a controller")
            # Whoever became it before all was back has not seen all of it.
            epoch = newest_term(cluster)
            client.delete("/controller")
            wait_until(lambda: newest_term(cluster) > epoch, "another term")
            wait_until(
                lambda: registered(cluster) == {0, 1, 2}, "every broker to be registered again"
            )
        cluster.create_topic("later", 1)
        send(cluster, 100)
        assert read(cluster, 300, "another") == 300
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
    one.wait(one.broker.parts.local_controller.create_topics([NewTopic(TOPIC, partitions, 1)]))


def send_one(one: InProcessBroker, value: bytes) -> None:
    with RawClient(one.bootstrap) as client:
        assert produce(client, TOPIC, 0, build_batch([Record(0, 0, None, value)])).error_code == 0


def values(one: InProcessBroker) -> bytes:
    with RawClient(one.bootstrap) as client:
        return bytes(fetch(client, TOPIC).records)


async def vanish(broker: Parts, *, noted: bool) -> None:
    if noted:
        note = znodes.encode_deleted_topic([broker.image.topics[TOPIC].topic_id], [0])
        broker.image.apply(znodes.deleted_topic_path(TOPIC), note)
    broker.image.apply(znodes.topic_path(TOPIC), None)
    await broker.replicas.hosting.follow([Change(TOPIC)])


def test_a_deletion_that_is_noted_deletes_files(tmp_path: Path) -> None:
    with InProcessBroker({"log.dirs": tmp_path, "log.segment.delete.delay.ms": 600_000}) as one:
        create(one, 2)
        one.wait(vanish(one.broker.parts, noted=True))
        assert [name.rpartition("-")[2] for name in directories(tmp_path)] == ["delete"] * 2


def test_a_topic_that_nobody_deleted_has_its_records_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker({"log.dirs": tmp_path, "log.retention.ms": 1}) as one:
        create(one, 1)
        send_one(one, b"before")
        broker = one.broker.parts
        topic = broker.image.topics[TOPIC]
        one.wait(vanish(broker, noted=False))
        assert "has disappeared from the metadata without being deleted" in caplog.text
        with RawClient(one.bootstrap) as client:
            assert fetch(client, TOPIC).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Neither retention nor compaction touches it meanwhile.
        config = broker.logs.logs[TopicPartition(TOPIC, 0)].config
        assert (config.compact, config.retention_ms, config.retention_bytes) == (False, -1, -1)

        async def back() -> None:
            broker.image.topics[TOPIC] = topic
            await broker.replicas.hosting.follow([Change(TOPIC)])

        one.wait(back())
        send_one(one, b"after")
        assert b"before" in values(one) and b"after" in values(one)

        one.wait(vanish(broker, noted=False))
        one.stop()
        one.start()  # its store has the topic
        assert b"before" in values(one) and b"after" in values(one)


def test_older_metadata_neither_takes_a_role_away_nor_a_replica(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker({"log.dirs": tmp_path}) as one:
        broker = one.broker.parts
        create(one, 1)
        tp = TopicPartition(TOPIC, 0)
        topic = broker.image.topics[TOPIC]

        async def follow(state: PartitionState, replicas: tuple[int, ...] = (0,)) -> None:
            topic.states[0], topic.replicas[0] = state, replicas
            await broker.replicas.hosting.follow([Change(TOPIC)])

        one.wait(follow(PartitionState(0, 5, (0,), partition_epoch=7)))
        one.wait(follow(PartitionState(1, 3, (1,), partition_epoch=4)))
        partition = broker.replicas.leader(TOPIC, 0)
        assert (partition.leader_epoch, partition.tp) == (5, tp)
        one.wait(follow(PartitionState(1, 4, (1,), partition_epoch=4), (1,)))
        assert [name.rpartition("-")[2] for name in directories(tmp_path)] == ["stray"]
        assert "has leader epoch 4 in the metadata, and had 5 before" in caplog.text


def test_a_replica_is_not_deleted_while_its_state_names_this_broker(tmp_path: Path) -> None:
    """A snapshot that is made while a topic changes may be newer than its position: then what is
    told again is an older assignment beside the state of now.
    """
    with InProcessBroker({"log.dirs": tmp_path}) as one:
        broker = one.broker.parts
        create(one, 1)
        topic, tp = broker.image.topics[TOPIC], TopicPartition(TOPIC, 0)

        async def follow(state: PartitionState, change: Change) -> None:
            topic.states[0] = state
            await broker.replicas.hosting.follow([change])

        one.wait(follow(PartitionState(0, 5, (0,), partition_epoch=7), Change(TOPIC)))
        topic.replicas[0] = (1,)
        one.wait(follow(PartitionState(0, 5, (0,), partition_epoch=7), Change(TOPIC)))
        assert broker.replicas.leader(TOPIC, 0).log is broker.logs.logs[tp]
        one.wait(follow(PartitionState(1, 6, (1,), partition_epoch=8), Change(TOPIC, 0)))
        assert tp not in broker.logs.logs


@pytest.mark.parametrize(
    ("there", "complaint"),
    [(None, "ZooKeeper has no cluster"), ("theirs", "ZooKeeper has cluster theirs")],
)
def test_another_tree_is_told_from_ours(there: str | None, complaint: str) -> None:
    async def test() -> None:
        session = await SharedTree().open()
        identity = ClusterIdentity(session, OURS)
        await session.multi([Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(OURS))])
        await session.multi([(await identity.look()).unchanged])
        if there is None:
            await session.multi([Delete(znodes.CLUSTER_ID)])
        else:
            await session.multi([Put(znodes.CLUSTER_ID, znodes.encode_cluster_id(there))])
        with pytest.raises(NotThisCluster, match=complaint):
            await identity.look()

    asyncio.run(test())


def test_a_tree_that_has_gone_back_is_not_gone_on_with() -> None:
    async def test() -> None:
        session = await SharedTree().open()
        identity = ClusterIdentity(session, OURS)
        await session.multi([Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(OURS))])
        assert (await identity.look())[1:] == (0, None)
        identity.saw(7)
        for epoch in (None, 6):
            if epoch is not None:
                await session.multi(
                    [Put(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch))]
                )
            with pytest.raises(NotThisCluster, match="is older than what this broker has seen"):
                await identity.look()
        await session.multi([Put(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(7))])
        assert (await identity.look()).epoch == 7

    asyncio.run(test())


def candidate(session: TreeSession) -> tuple[ControllerElection, ControllerState]:
    state = ControllerState(session)
    control = PartitionControl(state, unclean=lambda image, topic: False)
    identity = ClusterIdentity(session, OURS)
    return ControllerElection(
        1, ("h", 9092), session, state, control, identity, now_ms=lambda: 0
    ), state


@pytest.mark.parametrize(
    "path", [znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH, znodes.topic_path(TOPIC)]
)
def test_a_tree_that_is_being_put_back_is_waited_for(path: str) -> None:
    """Nodes are made first, and filled then. Nobody who looks meanwhile ends for it."""

    async def test() -> None:
        session = await SharedTree().open()
        full = {
            znodes.CLUSTER_ID: znodes.encode_cluster_id(OURS),
            znodes.CONTROLLER_EPOCH: znodes.encode_controller_epoch(3),
            znodes.topic_path(TOPIC): znodes.encode_topic(bytes(16), {0: (1,)}),
        }
        await session.multi([Put(one, b"" if one == path else data) for one, data in full.items()])
        election, state = candidate(session)
        with pytest.raises(NotThisCluster, match=path):
            await election.look()
        assert not state.active
        await session.multi([Put(path, full[path])])
        await election.look()
        assert state.active and list(state.image.topics) == [TOPIC]

    asyncio.run(test())


REGISTERED = BrokerRegistration(2, (BrokerEndpoint("PLAINTEXT", "h", 9093),))


@pytest.mark.parametrize("when", ["before the term", "during the term"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("7", b""),
        ("7", b"{"),
        ("7", b"{}"),
        ("7", b'{"endpoints":[]}'),
        ("seven", znodes.encode_broker(REGISTERED, now_ms=0)),
        ("02", znodes.encode_broker(replace(REGISTERED, rack="another"), now_ms=0)),
    ],
)
def test_a_node_that_is_no_registration_counts_for_no_broker_and_is_told_once(
    when: str, name: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody ends for it, and nobody is kept from being the controller."""

    async def test() -> None:
        session = await SharedTree().open()
        await session.multi([Put(znodes.CLUSTER_ID, znodes.encode_cluster_id(OURS))])
        election, state = candidate(session)
        await session.multi(
            [Create(znodes.broker_path(2), znodes.encode_broker(REGISTERED, now_ms=0))]
        )
        if when == "during the term":
            await election.look()
        await session.multi([Create(f"{znodes.BROKERS}/{name}", data)])
        for _ in range(3):
            election._on_brokers_changed()
            await election.look()
        assert state.active
        assert {node: one.rack for node, one in state.image.brokers.items()} == {2: None}
        assert caplog.text.count(f"{znodes.BROKERS}/{name}") == 1
        assert "Delete it: brokers register automatically" in caplog.text

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"", b"7", b'{"brokerid":7}'])
def test_a_controller_that_cannot_be_read_is_waited_for_until_it_is_gone(data: bytes) -> None:
    async def test() -> None:
        session = await SharedTree().open()
        await session.multi([Put(znodes.CLUSTER_ID, znodes.encode_cluster_id(OURS))])
        election, state = candidate(session)
        await session.multi([Create(znodes.CONTROLLER, data)])
        with pytest.raises(NotThisCluster, match=znodes.CONTROLLER):
            await election.look()
        await session.multi([Delete(znodes.CONTROLLER)])
        await election.look()
        assert state.active

    asyncio.run(test())


def test_who_asks_for_a_controller_that_cannot_be_read_is_told_that_there_is_none(
    tmp_path: Path,
) -> None:
    with InProcessBroker({"log.dirs": tmp_path}) as one:
        member = one.broker.parts.member
        one.wait(one.broker.parts.coordination.multi([Put(znodes.CONTROLLER, b"")]))
        with pytest.raises(ApiError) as told:
            one.wait(member.controller_address())
        assert told.value.code is ErrorCode.NOT_CONTROLLER


def test_a_broker_that_starts_deletes_nothing_that_the_metadata_places_elsewhere(
    tmp_path: Path,
) -> None:
    """It may be older than the replica, also where the leader epoch of its last record is the same:
    nothing was written since it was moved here.
    """
    with InProcessBroker({"log.dirs": tmp_path, "log.segment.delete.delay.ms": 600_000}) as one:
        create(one, 1)
        broker = one.broker.parts
        topic = broker.image.topics[TOPIC]

        async def find_moved() -> None:
            topic.states[0], topic.replicas[0] = PartitionState(1, 0, (1,)), (1,)
            adoption.move_away_reassigned(broker.image, broker.logs, node_id=0)

        one.wait(find_moved())
        assert [name.rpartition("-")[2] for name in directories(tmp_path)] == ["stray"]
