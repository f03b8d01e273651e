"""A single broker becomes the first of a cluster: what it knew is in the shared tree, and nobody starts it alone again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.app import STORE_FILE, StartError
from millstream.broker.migration import Migrated, MigrationError, migrate_to
from millstream.control import znodes
from millstream.ports.coordination import Create
from millstream.ports.embedded_coordination import EmbeddedCoordination
from millstream.ports.files import RealFiles
from millstream.testing.coordination import SharedTree
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic


class Target:
    """A second store stands for the shared tree: both keep to one contract."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "target")

    def migrate(self, data: Path) -> Migrated:
        async def run() -> Migrated:
            target = EmbeddedCoordination(RealFiles(), self.path)
            await target.load()
            try:
                return await migrate_to(target, "zk:2181/mill", [str(data)])
            finally:
                await target.close()

        return asyncio.run(run())

    def nodes(self) -> dict[str, bytes]:
        async def run() -> dict[str, bytes]:
            target = EmbeddedCoordination(RealFiles(), self.path)
            nodes = {path: node.data for path, node in (await target.load()).items()}
            await target.close()
            return nodes

        return asyncio.run(run())

    def put(self, path: str, data: bytes) -> None:
        async def run() -> None:
            target = EmbeddedCoordination(RealFiles(), self.path)
            await target.load()
            await target.multi([Create(path, data)])
            await target.close()

        asyncio.run(run())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of a broker that has run and stopped."""
    directory = tmp_path / "data"
    with InProcessBroker({"log.dirs": directory}) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "a", 3, retention_ms=5)
        create_topic(client, "b")
    return directory


def test_all_that_the_store_knew_is_in_the_tree(data: Path, tmp_path: Path):
    target = Target(tmp_path)
    done = target.migrate(data)
    nodes = target.nodes()
    assert (done.topics, done.cluster_id) == (2, znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID]))
    assert znodes.decode_config(nodes[znodes.topic_config_path("a")]) == {"retention.ms": "5"}
    assert {znodes.partition_state_path("a", index) for index in range(3)} <= nodes.keys()
    assert done.nodes == len(nodes)


def test_the_broker_does_not_start_alone_again_and_is_not_moved_twice(data: Path, tmp_path: Path):
    Target(tmp_path).migrate(data)
    with (
        pytest.raises(StartError, match=r"zookeeper\.connect=zk:2181/mill"),
        InProcessBroker({"log.dirs": data}),
    ):
        pass
    with pytest.raises(MigrationError, match="in ZooKeeper already"):
        Target(tmp_path / "data").migrate(data)


def member(directory: Path, tree: SharedTree, **settings: str) -> InProcessBroker:
    """A broker of the cluster that has this tree."""
    connect = {"zookeeper.connect": "zk:2181/mill"}
    return InProcessBroker({"log.dirs": directory, **connect, **settings}, coordination=tree.open)


def test_a_broker_that_was_alone_is_told_to_be_moved_first(data: Path):
    """It would join as one that has nothing: its topics would be gone."""
    with pytest.raises(StartError, match="millstream migrate --to zk:2181/mill"), member(data, SharedTree()):
        pass


def test_a_broker_of_a_cluster_does_not_start_alone(tmp_path: Path):
    """It would go on writing to its replicas, under the epochs of their leaders."""
    with member(tmp_path / "data", SharedTree()):
        pass
    with (
        pytest.raises(StartError, match=r"zookeeper\.connect=zk:2181/mill"),
        InProcessBroker({"log.dirs": tmp_path / "data"}),
    ):
        pass


def test_a_broker_of_a_cluster_does_not_begin_another_one(tmp_path: Path):
    """The chroot is missing, say: clients would write to an empty cluster."""
    data, tree = tmp_path / "data", SharedTree()
    with member(data, tree) as broker:
        cluster_id = broker.broker.image.cluster_id
    with pytest.raises(StartError, match=f"belong to the cluster {cluster_id}"), member(data, SharedTree()):
        pass
    with member(data, tree):
        pass
    with member(data, SharedTree(), **{"cluster.id": cluster_id}) as broker:
        assert broker.broker.image.cluster_id == cluster_id


def test_a_running_broker_is_not_moved(tmp_path: Path):
    with (
        InProcessBroker({"log.dirs": tmp_path / "data"}),
        pytest.raises(MigrationError, match="stop it first"),
    ):
        Target(tmp_path).migrate(tmp_path / "data")
    assert Target(tmp_path).nodes() == {}


def test_a_tree_that_is_in_use_is_left_alone(data: Path, tmp_path: Path):
    target = Target(tmp_path)
    target.put(znodes.CLUSTER_ID, znodes.encode_cluster_id("another"))
    with pytest.raises(MigrationError, match="holds a cluster already"):
        target.migrate(data)
    assert (data / STORE_FILE).exists()
    assert {path for path, node in target.nodes().items() if node} == {znodes.CLUSTER_ID}


def test_a_directory_without_a_store_is_told(tmp_path: Path):
    with pytest.raises(MigrationError, match="no broker has run there alone"):
        Target(tmp_path).migrate(tmp_path)
