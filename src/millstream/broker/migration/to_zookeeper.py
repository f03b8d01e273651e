"""Turns the one broker of a data directory into the first member of a cluster: its metadata goes to ZooKeeper, its logs stay where they are.

Topics, ids, settings, leader epochs and producer ids are the nodes of the store, which ZooKeeper holds in the same form; groups and transactions are records in
topics. The broker has to be stopped. Two histories could not be joined, so there is only ever one that can go on: first a note says where the metadata goes
(``move_notes.py``), and nobody starts the broker alone any more; then the tree is written, which no broker takes for a cluster before it is whole (``move_plan.py``);
last the store is put aside, without which the broker starts with ZooKeeper. Killed anywhere, the same command goes on from there, or takes it back.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import NamedTuple

from millstream.broker.migration.notes import (
    MoveNote,
    move_command,
    read_notes,
    stores,
    write_note,
)
from millstream.broker.migration.plan import (
    Contents,
    Move,
    Obstacle,
    fingerprint,
    plan_move,
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
    """It cannot be done, or not to its end; the message says what to do."""


class Migrated(NamedTuple):
    """What was taken over."""

    cluster_id: str
    topics: int
    nodes: int


async def migrate_to_zookeeper(
    connect: str, log_dirs: Sequence[str], *, metadata_dir: str | None = None, timeout_s: float
) -> Migrated:
    """To the ZooKeeper at HOST:PORT[/CHROOT]."""
    async with _zookeeper(connect, timeout_s) as zookeeper:
        return await migrate_to(zookeeper, connect, log_dirs, metadata_dir=metadata_dir)


async def undo_at_zookeeper(
    connect: str, log_dirs: Sequence[str], *, metadata_dir: str | None = None, timeout_s: float
) -> None:
    """Takes back a move that has not finished."""
    gone = f". If that ZooKeeper is gone for good, remove {MIGRATION_FILE} from the directories of the broker instead"
    async with _zookeeper(connect, timeout_s, without=gone) as zookeeper:
        await undo_move(zookeeper, connect, log_dirs, metadata_dir=metadata_dir)


@asynccontextmanager
async def _zookeeper(connect: str, timeout_s: float, *, without: str = "") -> AsyncIterator[Coordination]:
    from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

    try:
        zookeeper = await ZooKeeperCoordination(connect).open(int(timeout_s * 1000))
    except ValueError as error:
        raise MigrationError(str(error)) from None
    except CoordinationError as error:
        raise MigrationError(f"{error}{without}") from None
    try:
        yield zookeeper
    except CoordinationError as error:
        raise MigrationError(
            f"ZooKeeper at {connect}: {type(error).__name__}: {error}. The same command goes on from there"
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
    """``address`` is how a broker finds the service: what the note tells."""
    with _stopped_broker(files or RealFiles(), address, log_dirs, metadata_dir) as broker:
        nodes = await broker.read()
        broker.check_partitions(nodes)
        mark = fingerprint(nodes)
        noted = any(note.fingerprint == mark for note in broker.notes)
        try:
            move = plan_move(nodes, await _contents(coordination), noted=noted)
        except Obstacle as obstacle:
            back = "; --undo takes back first what this move has begun" if broker.notes else ""
            raise MigrationError(f"{obstacle}{back}") from None
        broker.note(address, mark)
        if not move.whole:
            await _write(coordination, nodes, move)
        broker.put_store_aside()
    topics = [path for path in nodes if path.startswith(znodes.TOPICS + "/") and path.count("/") == 3]
    return Migrated(znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID]), len(topics), len(nodes))


async def undo_move(
    coordination: Coordination,
    address: str,
    log_dirs: Sequence[str],
    *,
    metadata_dir: str | None = None,
    files: Files | None = None,
) -> None:
    """Deletes what was written to ZooKeeper, and then the notes: before that the broker does not start alone."""
    with _stopped_broker(files or RealFiles(), address, log_dirs, metadata_dir) as broker:
        if not broker.notes:
            raise MigrationError(f"no move of {broker.directory} is under way: there is nothing to undo")
        try:
            await _erase(coordination, await broker.read())
        except Obstacle as obstacle:
            raise MigrationError(str(obstacle)) from None
        broker.remove_notes()


# ---- the directories ------------------------------------------------------------------------------------------


@contextmanager
def _stopped_broker(
    files: Files, address: str, log_dirs: Sequence[str], metadata_dir: str | None
) -> Iterator[_StoppedBroker]:
    """Its directories, locked; refuses where there is no store to be moved, or it is on its way to another place."""
    # By their real names: a directory that is named twice would seem to be locked by somebody else.
    named = [metadata_dir, *log_dirs] if metadata_dir else log_dirs
    places = list(dict.fromkeys(map(os.path.realpath, named)))
    if missing := [path for path in places if not files.is_dir(path)]:
        raise MigrationError(f"there is no directory {missing[0]}")
    with ExitStack() as locks:
        for path in places:
            lock = files.lock(os.path.join(path, file_names.LOCK))
            if lock is None:
                raise MigrationError(f"a broker runs on {path}: stop it first")
            locks.callback(lock.release)
        notes = read_notes(files, places)
        store = _only_store(files, places, notes)
        if elsewhere := [note for note in notes if note.address != address]:
            command = move_command(elsewhere[0].address, log_dirs, metadata_dir)
            raise MigrationError(
                f"this broker is being moved to {elsewhere[0].address}, says {elsewhere[0].path}: `{command}` finishes that, and with --undo takes it back"
            )
        yield _StoppedBroker(files, store, places, notes)


def _only_store(files: Files, places: Sequence[str], notes: Sequence[MoveNote]) -> str:
    found = stores(files, places)
    if len(found) > 1:
        raise MigrationError(
            f"{found[0]} and {found[1]} are both there: move the one away that the broker does not use"
        )
    if found:
        return found[0]
    if notes:
        raise MigrationError(
            f"the metadata of {os.path.dirname(notes[0].path)} is in ZooKeeper already: zookeeper.connect={notes[0].address}"
        )
    raise MigrationError(
        f"there is no {STORE_FILE} in {', '.join(places)}: no broker has run there alone, or its metadata.log.dir is elsewhere (--metadata)"
    )


class _StoppedBroker:
    """What is on its disks, as long as its directories are locked."""

    def __init__(self, files: Files, store: str, places: Sequence[str], notes: list[MoveNote]) -> None:
        self._files = files
        self._store = store
        self.directory = os.path.dirname(store)
        self._places = places
        self.notes = notes

    async def read(self) -> Contents:
        """The nodes of the store, those above first. Opening the store writes it anew: what is told to ZooKeeper has to be durable here."""
        store = EmbeddedCoordination(self._files, self._store)
        try:
            nodes = await store.load()
        except CorruptStore as error:
            raise MigrationError(str(error)) from None
        await store.close()
        if znodes.CLUSTER_ID not in nodes:
            raise MigrationError(
                f"{self._store} knows nothing: no broker has come to its start with it. Move it away"
            )
        self._check_identity(znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID].data))
        return {path: node.data for path, node in sorted(nodes.items())}

    def _check_identity(self, cluster_id: str) -> None:
        """A directory of somebody else, named by mistake, would be noted as moved."""
        for path in self._places:
            try:
                meta = read_meta_properties(self._files, os.path.join(path, file_names.META_PROPERTIES))
            except CorruptFile as error:
                raise MigrationError(str(error)) from None
            if (theirs := meta.get("cluster.id", cluster_id)) != cluster_id:
                raise MigrationError(
                    f"{path} belongs to the cluster {theirs}, but {self._store} to {cluster_id}: is that its broker?"
                )

    def check_partitions(self, nodes: Contents) -> None:
        """With some of its directories alone the broker would begin the others' partitions empty: groups and records would seem lost."""
        missing = [
            tp
            for tp in _partitions(nodes)
            if not any(self._files.is_dir(os.path.join(path, str(tp))) for path in self._places)
        ]
        if missing:
            raise MigrationError(
                f"{missing[0]}{f' and {len(missing) - 1} more partitions are' if missing[1:] else ' is'} in none of {', '.join(self._places)}: name "
                "every directory of log.dirs (--data DIR --data DIR). If one is lost for good, start the broker alone once without it"
            )

    def note(self, address: str, mark: str) -> None:
        for path in self._places:
            write_note(self._files, path, address, mark)

    def remove_notes(self) -> None:
        for note in self.notes:
            self._files.unlink(note.path)
            self._files.sync_dir(os.path.dirname(note.path))

    def put_store_aside(self) -> None:
        self._files.rename(self._store, f"{self._store}.migrated")
        self._files.sync_dir(self.directory)


def _partitions(nodes: Contents) -> Iterator[TopicPartition]:
    for path, data in nodes.items():
        above, _, name = path.rpartition("/")
        if above == znodes.TOPICS:
            _id, replicas, _moving = znodes.decode_topic(data)
            yield from (TopicPartition(name, index) for index in sorted(replicas))


# ---- the tree -------------------------------------------------------------------------------------------------


async def _contents(coordination: Coordination) -> Contents:
    return {path: node.data for path, node in (await coordination.load()).items()}


async def _write(coordination: Coordination, nodes: Contents, move: Move) -> None:
    """Everything under the reservation, which the last write makes the cluster id."""
    cluster_id = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    if move.reserve:
        await coordination.multi([Create(znodes.CLUSTER_ID, znodes.encode_reservation(cluster_id))])
    held = await _held(coordination, cluster_id)
    for some in sliced([held], [[Create(path, nodes[path])] for path in move.missing]):
        await coordination.multi(some)
    await _compare(coordination, nodes)
    await coordination.multi([held, Put(znodes.CLUSTER_ID, nodes[znodes.CLUSTER_ID])])


async def _compare(coordination: Coordination, nodes: Contents) -> None:
    found = await _contents(coordination)
    for path, data in nodes.items():
        if path != znodes.CLUSTER_ID and found.get(path) != data:
            raise MigrationError(
                f"{path} did not arrive in ZooKeeper; the store is as it was. The same command goes on, and with --undo takes it back"
            )


async def _erase(coordination: Coordination, nodes: Contents) -> None:
    """The reservation goes last: until then what is left there is known for a part of this move."""
    there = await coordination.load()
    undo = plan_undo(nodes, {path: node.data for path, node in there.items()})
    if not undo.ours:
        return
    cluster_id = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    if undo.reopen:
        # Whoever has begun to use the tree since it was read has raised the controller epoch.
        unused = [Check(path, there[path].version) for path in (znodes.CONTROLLER_EPOCH,) if path in there]
        await coordination.multi(
            [
                Check(znodes.CLUSTER_ID, there[znodes.CLUSTER_ID].version),
                *unused,
                Put(znodes.CLUSTER_ID, znodes.encode_reservation(cluster_id)),
            ]
        )
    held = await _held(coordination, cluster_id)
    for some in sliced([held], [[Delete(path)] for path in undo.deletions]):
        await coordination.multi(some)
    await coordination.multi([held, Delete(znodes.CLUSTER_ID)])


async def _held(coordination: Coordination, cluster_id: str) -> Check:
    """Lets a write pass only while the reservation is as it is now."""
    node = await coordination.get(znodes.CLUSTER_ID)
    if node is None or node.data != znodes.encode_reservation(cluster_id):
        raise MigrationError(
            f"{znodes.CLUSTER_ID} in ZooKeeper was changed by somebody else: what runs there?"
        )
    return Check(znodes.CLUSTER_ID, node.version)
