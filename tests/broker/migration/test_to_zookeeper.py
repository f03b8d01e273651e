"""A single broker becomes the first of a cluster, and does not start alone again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.broker.app import StartError
from millstream.broker.migration.to_zookeeper import (
    Migrated,
    MigrationError,
    migrate_to,
    undo_migration,
)
from millstream.control import znodes
from millstream.ports.coordination import Create
from millstream.ports.embedded_coordination import MIGRATION_FILE, STORE_FILE, EmbeddedCoordination
from millstream.ports.files import RealFiles
from millstream.testing.coordination import SharedTree
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic

ADDRESS = "zk:2181/mill"


class Target:
    """A second store in place of ZooKeeper: both have the same contract."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "target")

    def migrate(self, *data: Path, metadata: Path | None = None) -> Migrated:
        async def run() -> Migrated:
            target = EmbeddedCoordination(RealFiles(), self.path)
            await target.load()
            directory = str(metadata) if metadata else None
            try:
                return await migrate_to(
                    target, ADDRESS, list(map(str, data)), metadata_dir=directory
                )
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
    """The data of a broker that has run and stopped."""
    directory = tmp_path / "data"
    with InProcessBroker({"log.dirs": directory}) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "a", 3, retention_ms=5)
        create_topic(client, "b")
    return directory


def test_migration_copies_the_whole_store(data: Path, tmp_path: Path):
    target = Target(tmp_path)
    done = target.migrate(data)
    nodes = target.nodes()
    assert (done.topics, done.cluster_id) == (2, znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID]))
    assert znodes.decode_config(nodes[znodes.topic_config_path("a")]) == {"retention.ms": "5"}
    assert {znodes.partition_state_path("a", index) for index in range(3)} <= nodes.keys()
    assert done.nodes == len(nodes)


def test_migrated_broker_does_not_start_alone_again(data: Path, tmp_path: Path):
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
    connect = {"zookeeper.connect": ADDRESS}
    return InProcessBroker({"log.dirs": directory, **connect, **settings}, coordination=tree.open)


def test_single_broker_must_be_migrated_before_it_joins(data: Path):
    """It would join as an empty broker, without its topics."""
    with (
        pytest.raises(StartError, match="millstream migrate --to zk:2181/mill"),
        member(data, SharedTree()),
    ):
        pass


def test_broker_of_a_cluster_does_not_start_alone(tmp_path: Path):
    """It would continue to write to its replicas, under the epochs of their leaders."""
    with member(tmp_path / "data", SharedTree()):
        pass
    with (
        pytest.raises(StartError, match=r"zookeeper\.connect=zk:2181/mill"),
        InProcessBroker({"log.dirs": tmp_path / "data"}),
    ):
        pass


def test_broker_of_a_cluster_does_not_begin_another(tmp_path: Path):
    """The chroot is missing, say: clients would write to an empty cluster."""
    data, tree = tmp_path / "data", SharedTree()
    with member(data, tree) as broker:
        cluster_id = broker.broker.image.cluster_id
    with (
        pytest.raises(StartError, match=f"belong to the cluster {cluster_id}"),
        member(data, SharedTree()),
    ):
        pass
    with member(data, tree):
        pass
    with member(data, SharedTree(), **{"cluster.id": cluster_id}) as broker:
        assert broker.broker.image.cluster_id == cluster_id


def test_running_broker_is_not_migrated(tmp_path: Path):
    with (
        InProcessBroker({"log.dirs": tmp_path / "data"}),
        pytest.raises(MigrationError, match="stop it first"),
    ):
        Target(tmp_path).migrate(tmp_path / "data")
    assert Target(tmp_path).nodes() == {}


def test_tree_in_use_is_not_changed(data: Path, tmp_path: Path):
    target = Target(tmp_path)
    target.put(znodes.CLUSTER_ID, znodes.encode_cluster_id("another"))
    with pytest.raises(MigrationError, match="has a cluster already"):
        target.migrate(data)
    assert (data / STORE_FILE).exists()
    assert {path for path, node in target.nodes().items() if node} == {znodes.CLUSTER_ID}


def test_directory_without_a_store_is_rejected(tmp_path: Path):
    with pytest.raises(MigrationError, match="no broker has run there alone"):
        Target(tmp_path).migrate(tmp_path)


# ---- a separate directory for the metadata ----


@pytest.fixture
def apart(tmp_path: Path) -> dict[str, Path]:
    return {"log.dirs": tmp_path / "data", "metadata.log.dir": tmp_path / "meta"}


def test_running_broker_is_not_migrated_by_its_metadata_directory(
    tmp_path: Path, apart: dict[str, Path]
):
    data, meta = apart.values()
    with InProcessBroker(apart) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "a")
        written = (meta / STORE_FILE).read_bytes()
        for named in ((meta,), (data, meta)):
            with pytest.raises(MigrationError, match="stop it first"):
                Target(tmp_path).migrate(*named)
        with pytest.raises(MigrationError, match="stop it first"):
            Target(tmp_path).migrate(data, metadata=meta)
        assert (meta / STORE_FILE).read_bytes() == written
    assert Target(tmp_path).migrate(data, metadata=meta).topics == 1
    assert all((path / MIGRATION_FILE).exists() for path in (data, meta))


def test_directory_named_twice_is_locked_once(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with InProcessBroker({"log.dirs": tmp_path / "data", "metadata.log.dir": tmp_path / "link"}):
        pass
    assert Target(tmp_path).migrate(tmp_path / "data", metadata=tmp_path / "link").topics == 0


def test_missing_directory_is_rejected(tmp_path: Path):
    """The broker would start the partitions of the missing directory empty."""
    both = [tmp_path / "one", tmp_path / "two"]
    dirs = ",".join(map(str, both))
    with InProcessBroker({"log.dirs": dirs}) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "a", 4)
    (store,) = [path for path in both if (path / STORE_FILE).exists()]
    target = Target(tmp_path)
    with pytest.raises(
        MigrationError, match=r"a-\d and 1 more partitions are in none of .* name every directory"
    ):
        target.migrate(store)
    assert not target.nodes() and not (store / MIGRATION_FILE).exists()
    assert target.migrate(*both).topics == 1


def test_missing_store_hints_at_the_metadata_option(tmp_path: Path, apart: dict[str, Path]):
    with InProcessBroker(apart):
        pass
    with pytest.raises(MigrationError, match=r"metadata\.log\.dir is elsewhere \(--metadata\)"):
        Target(tmp_path).migrate(apart["log.dirs"])
    with pytest.raises(MigrationError, match=r"there is no directory .*nowhere"):
        Target(tmp_path).migrate(apart["log.dirs"], metadata=tmp_path / "nowhere")


def test_of_two_stores_none_is_guessed(tmp_path: Path, data: Path, apart: dict[str, Path]):
    with InProcessBroker({"log.dirs": tmp_path / "x", "metadata.log.dir": tmp_path / "meta"}):
        pass
    with pytest.raises(MigrationError, match=r"both .* exist"):
        Target(tmp_path).migrate(data, metadata=tmp_path / "meta")


def test_directories_of_different_brokers_are_rejected(
    tmp_path: Path, data: Path, apart: dict[str, Path]
):
    with InProcessBroker({"log.dirs": tmp_path / "x", "metadata.log.dir": tmp_path / "meta"}):
        pass
    (data / STORE_FILE).unlink()
    with pytest.raises(MigrationError, match="is that its broker"):
        Target(tmp_path).migrate(data, metadata=tmp_path / "meta")
    assert not (data / MIGRATION_FILE).exists()


# ---- a move that was not finished (test_to_zookeeper_interrupted.py ends it at every step) ----


def in_tree(
    tree: SharedTree, data: Path, command: Callable[..., Awaitable[object]] = migrate_to
) -> None:
    async def run() -> None:
        session = await tree.open()
        try:
            await command(session, ADDRESS, [str(data)])
        finally:
            await session.close()

    asyncio.run(run())


@pytest.fixture
def whole(data: Path) -> SharedTree:
    """The tree of a migration that was interrupted before the store was renamed."""
    tree = SharedTree()
    in_tree(tree, data)
    (data / f"{STORE_FILE}.migrated").rename(data / STORE_FILE)
    return tree


def test_migration_completes_while_others_use_the_cluster(
    data: Path, tmp_path: Path, whole: SharedTree
):
    second = member(tmp_path / "2", whole, **{"node.id": "2"})
    with second, RawClient(second.bootstrap) as client:
        create_topic(client, "new")
        with pytest.raises(MigrationError, match="cannot be undone"):
            in_tree(whole, data, undo_migration)
        with pytest.raises(
            StartError, match=r"`millstream migrate --to zk:2181/mill --data .*` completes it"
        ):
            member(data, whole).start()
        in_tree(whole, data)
        with member(data, whole) as first:
            assert first.run(lambda: set(first.broker.image.topics)) == {"a", "b", "new"}


def test_migration_is_not_completed_at_another_address(
    data: Path, tmp_path: Path, whole: SharedTree
):
    (data / MIGRATION_FILE).write_text("elsewhere:2181\n")
    with pytest.raises(
        MigrationError, match=r"being migrated to elsewhere:2181.*--to elsewhere:2181 --data"
    ):
        in_tree(whole, data)


def test_removed_note_does_not_merge_two_histories(data: Path, whole: SharedTree):
    (data / MIGRATION_FILE).unlink()
    with InProcessBroker({"log.dirs": data}) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "late")
    with pytest.raises(MigrationError, match="both have changed since"):
        in_tree(whole, data)
    assert not (data / MIGRATION_FILE).exists()
    with pytest.raises(StartError, match="move that file away"), member(data, whole):
        pass


def test_reserved_tree_is_not_used_by_brokers(data: Path, tmp_path: Path):
    tree = SharedTree()
    tree.tree.multi([Create(znodes.CLUSTER_ID, znodes.encode_reservation("another"))], 0)
    with (
        pytest.raises(StartError, match="migration of the cluster another"),
        member(tmp_path / "2", tree),
    ):
        pass
    with pytest.raises(MigrationError, match="target of another migration"):
        in_tree(tree, data)
    with pytest.raises(MigrationError, match="nothing to undo"):
        in_tree(tree, data, undo_migration)


def test_store_is_not_ignored_when_a_cluster_with_its_id_begins(data: Path):
    with InProcessBroker({"log.dirs": data}) as broker:
        cluster_id = broker.broker.image.cluster_id
    with (
        pytest.raises(StartError, match="millstream migrate"),
        member(data, SharedTree(), **{"cluster.id": cluster_id}),
    ):
        pass
