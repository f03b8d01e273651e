"""Migrates the metadata of a single broker to ZooKeeper, where it becomes the first of a cluster.

Its logs stay where they are. Topics, ids, settings, leader epochs and producer ids are nodes of the
store, and ZooKeeper has them in the same form. Groups and transactions are records in topics.

The broker must be stopped. Two histories could not be merged, so only one may ever continue:

1. A note says where the metadata goes (``notes.py``). From now on the broker does not start alone.
2. The tree is written. No broker accepts it as a cluster before it is complete (``plan.py``).
3. The store is renamed. Without it the broker starts with ZooKeeper.

After a crash at any point, the same command continues, or undoes it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import NamedTuple

from millstream.broker.migration.notes import (
    MigrationNote,
    migrate_command,
    read_notes,
    stores,
    write_note,
)
from millstream.broker.migration.plan import (
    Contents,
    MigrationPlan,
    Obstacle,
    fingerprint,
    plan_migration,
    plan_undo,
)
from millstream.control import znodes
from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import read_meta_properties
from millstream.log.errors import CorruptFile
from millstream.ports.coordination import (
    Check,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Put,
    sliced,
)
from millstream.ports.embedded_coordination import (
    MIGRATION_FILE,
    STORE_FILE,
    CorruptStore,
    EmbeddedCoordination,
)
from millstream.ports.files import Files, RealFiles


class MigrationError(Exception):
    """The migration cannot begin or complete; the message says what to do."""


class Migrated(NamedTuple):
    """The result of a migration."""

    cluster_id: str
    topics: int
    nodes: int


async def migrate_to_zookeeper(
    connect: str, log_dirs: Sequence[str], *, metadata_dir: str | None = None, timeout_s: float
) -> Migrated:
    """Migrate a broker to the ZooKeeper at HOST:PORT[/CHROOT]."""
    async with _zookeeper(connect, timeout_s) as zookeeper:
        return await migrate_to(zookeeper, connect, log_dirs, metadata_dir=metadata_dir)


async def undo_at_zookeeper(
    connect: str, log_dirs: Sequence[str], *, metadata_dir: str | None = None, timeout_s: float
) -> None:
    """Undo a migration that is not complete."""
    hint = f". If that ZooKeeper no longer exists, remove {MIGRATION_FILE} from the directories of the broker"
    async with _zookeeper(connect, timeout_s, hint=hint) as zookeeper:
        await undo_migration(zookeeper, connect, log_dirs, metadata_dir=metadata_dir)


@asynccontextmanager
async def _zookeeper(
    connect: str, timeout_s: float, *, hint: str = ""
) -> AsyncIterator[Coordination]:
    from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

    try:
        zookeeper = await ZooKeeperCoordination(connect).open(int(timeout_s * 1000))
    except ValueError as error:
        raise MigrationError(str(error)) from None
    except CoordinationError as error:
        raise MigrationError(f"{error}{hint}") from None
    try:
        yield zookeeper
    except CoordinationError as error:
        raise MigrationError(
            f"ZooKeeper at {connect}: {type(error).__name__}: {error}. The same command continues from there"
        ) from None
    finally:
        await zookeeper.close()


async def migrate_to(
    coordination: Coordination,
    address: str,
    log_dirs: Sequence[str],
    *,
    metadata_dir: str | None = None,
    files: Files | None = None,
) -> Migrated:
    """Migrate a broker. ``address`` is how it will find the service, for the note."""
    with _stopped_broker(files or RealFiles(), address, log_dirs, metadata_dir) as broker:
        nodes = await broker.read()
        broker.check_partitions(nodes)
        mark = fingerprint(nodes)
        noted = any(note.fingerprint == mark for note in broker.notes)
        try:
            plan = plan_migration(nodes, await _contents(coordination), noted=noted)
        except Obstacle as obstacle:
            hint = "; --undo reverts this migration first" if broker.notes else ""
            raise MigrationError(f"{obstacle}{hint}") from None
        broker.note(address, mark)
        if not plan.whole:
            await _write(coordination, nodes, plan)
        broker.rename_store()
    topics = [
        path for path in nodes if path.startswith(znodes.TOPICS + "/") and path.count("/") == 3
    ]
    return Migrated(znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID]), len(topics), len(nodes))


async def undo_migration(
    coordination: Coordination,
    address: str,
    log_dirs: Sequence[str],
    *,
    metadata_dir: str | None = None,
    files: Files | None = None,
) -> None:
    """Delete the nodes from ZooKeeper, and then the notes."""
    with _stopped_broker(files or RealFiles(), address, log_dirs, metadata_dir) as broker:
        if not broker.notes:
            raise MigrationError(
                f"no migration of {broker.directory} is in progress: nothing to undo"
            )
        try:
            await _delete(coordination, await broker.read())
        except Obstacle as obstacle:
            raise MigrationError(str(obstacle)) from None
        broker.remove_notes()


# ---- the directories ----


@contextmanager
def _stopped_broker(
    files: Files, address: str, log_dirs: Sequence[str], metadata_dir: str | None
) -> Iterator[_StoppedBroker]:
    """Lock the directories of a broker.

    Raise MigrationError if there is no store, or if it is being migrated to another place.
    """
    # By their real paths: a directory that is named twice would seem to be locked already.
    named = [metadata_dir, *log_dirs] if metadata_dir else log_dirs
    directories = list(dict.fromkeys(map(os.path.realpath, named)))
    if missing := [path for path in directories if not files.is_dir(path)]:
        raise MigrationError(f"there is no directory {missing[0]}")
    with ExitStack() as locks:
        for path in directories:
            lock = files.lock(os.path.join(path, file_names.LOCK))
            if lock is None:
                raise MigrationError(f"a broker runs on {path}: stop it first")
            locks.callback(lock.release)
        notes = read_notes(files, directories)
        store = _only_store(files, directories, notes)
        if elsewhere := [note for note in notes if note.address != address]:
            command = migrate_command(elsewhere[0].address, log_dirs, metadata_dir)
            raise MigrationError(
                f"this broker is being migrated to {elsewhere[0].address} ({elsewhere[0].path}): "
                f"`{command}` completes that, and with --undo reverts it"
            )
        yield _StoppedBroker(files, store, directories, notes)


def _only_store(files: Files, directories: Sequence[str], notes: Sequence[MigrationNote]) -> str:
    paths = stores(files, directories)
    if len(paths) > 1:
        raise MigrationError(
            f"both {paths[0]} and {paths[1]} exist: move the one away that the broker does not use"
        )
    if paths:
        return paths[0]
    if notes:
        raise MigrationError(
            f"the metadata of {os.path.dirname(notes[0].path)} is in ZooKeeper already: "
            f"zookeeper.connect={notes[0].address}"
        )
    raise MigrationError(
        f"there is no {STORE_FILE} in {', '.join(directories)}: no broker has run there alone, "
        "or its metadata.log.dir is elsewhere (--metadata)"
    )


class _StoppedBroker:
    """The data of a stopped broker, while its directories are locked."""

    def __init__(
        self, files: Files, store: str, directories: Sequence[str], notes: list[MigrationNote]
    ) -> None:
        self._files = files
        self._store = store
        self.directory = os.path.dirname(store)
        self._directories = directories
        self.notes = notes

    async def read(self) -> Contents:
        """Return the nodes of the store, parents first.

        Opening the store rewrites it, so everything that ZooKeeper gets is durable here.
        """
        store = EmbeddedCoordination(self._files, self._store)
        try:
            nodes = await store.load()
        except CorruptStore as error:
            raise MigrationError(str(error)) from None
        await store.close()
        if znodes.CLUSTER_ID not in nodes:
            raise MigrationError(
                f"{self._store} is empty: no broker has started with it. Move it away"
            )
        self._check_identity(znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID].data))
        return {path: node.data for path, node in sorted(nodes.items())}

    def _check_identity(self, cluster_id: str) -> None:
        """Raise if a directory belongs to another cluster: it would be marked as migrated."""
        for path in self._directories:
            try:
                meta = read_meta_properties(
                    self._files, os.path.join(path, file_names.META_PROPERTIES)
                )
            except CorruptFile as error:
                raise MigrationError(str(error)) from None
            if (other := meta.get("cluster.id", cluster_id)) != cluster_id:
                raise MigrationError(
                    f"{path} belongs to the cluster {other}, but {self._store} to {cluster_id}: "
                    "is that its broker?"
                )

    def check_partitions(self, nodes: Contents) -> None:
        """Raise if a directory is missing: its partitions would start empty."""
        missing = [
            tp
            for tp in _partitions(nodes)
            if not any(
                self._files.is_dir(os.path.join(path, str(tp))) for path in self._directories
            )
        ]
        if missing:
            others = f" and {len(missing) - 1} more partitions are" if missing[1:] else " is"
            raise MigrationError(
                f"{missing[0]}{others} in none of {', '.join(self._directories)}: name every directory of "
                "log.dirs (--data DIR --data DIR). If one is lost for good, start the broker alone once "
                "without it"
            )

    def note(self, address: str, mark: str) -> None:
        for path in self._directories:
            write_note(self._files, path, address, mark)

    def remove_notes(self) -> None:
        for note in self.notes:
            self._files.unlink(note.path)
            self._files.sync_dir(os.path.dirname(note.path))

    def rename_store(self) -> None:
        self._files.rename(self._store, f"{self._store}.migrated")
        self._files.sync_dir(self.directory)


def _partitions(nodes: Contents) -> Iterator[TopicPartition]:
    for path, data in nodes.items():
        above, _, name = path.rpartition("/")
        if above == znodes.TOPICS:
            _id, replicas, _reassigning = znodes.decode_topic(data)
            yield from (TopicPartition(name, index) for index in sorted(replicas))


# ---- the tree ----


async def _contents(coordination: Coordination) -> Contents:
    return {path: node.data for path, node in (await coordination.load()).items()}


async def _write(coordination: Coordination, nodes: Contents, plan: MigrationPlan) -> None:
    """Write everything under the reservation. The last write turns it into the cluster id."""
    cluster_id = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    if plan.reserve:
        await coordination.multi([Create(znodes.CLUSTER_ID, znodes.encode_reservation(cluster_id))])
    reserved = await _check_reservation(coordination, cluster_id)
    for writes in sliced([reserved], [[Create(path, nodes[path])] for path in plan.missing]):
        await coordination.multi(writes)
    await _compare(coordination, nodes)
    await coordination.multi([reserved, Put(znodes.CLUSTER_ID, nodes[znodes.CLUSTER_ID])])


async def _compare(coordination: Coordination, nodes: Contents) -> None:
    tree = await _contents(coordination)
    for path, data in nodes.items():
        if path != znodes.CLUSTER_ID and tree.get(path) != data:
            raise MigrationError(
                f"{path} was not written to ZooKeeper; the store is unchanged. The same command continues, "
                "and with --undo reverts the migration"
            )


async def _delete(coordination: Coordination, nodes: Contents) -> None:
    """Delete the nodes, and the reservation last: it marks the rest as part of this migration."""
    tree = await coordination.load()
    undo = plan_undo(nodes, {path: node.data for path, node in tree.items()})
    if not undo.ours:
        return
    cluster_id = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    if undo.reopen:
        # A broker that has begun to use the tree since it was read has raised the controller epoch.
        unused = [
            Check(path, tree[path].version) for path in (znodes.CONTROLLER_EPOCH,) if path in tree
        ]
        await coordination.multi(
            [
                Check(znodes.CLUSTER_ID, tree[znodes.CLUSTER_ID].version),
                *unused,
                Put(znodes.CLUSTER_ID, znodes.encode_reservation(cluster_id)),
            ]
        )
    reserved = await _check_reservation(coordination, cluster_id)
    for writes in sliced([reserved], [[Delete(path)] for path in undo.deletions]):
        await coordination.multi(writes)
    await coordination.multi([reserved, Delete(znodes.CLUSTER_ID)])


async def _check_reservation(coordination: Coordination, cluster_id: str) -> Check:
    """Return a check that lets writes succeed only while the reservation does not change."""
    node = await coordination.get(znodes.CLUSTER_ID)
    if node is None or node.data != znodes.encode_reservation(cluster_id):
        raise MigrationError(
            f"{znodes.CLUSTER_ID} in ZooKeeper was changed by another program; which one runs there?"
        )
    return Check(znodes.CLUSTER_ID, node.version)
