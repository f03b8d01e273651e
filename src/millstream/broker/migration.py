"""Turns the one broker of a data directory into the first member of a cluster: its metadata goes to ZooKeeper, its logs stay where they are.

Topics, ids, settings, leader epochs and producer ids are the nodes of the store, which ZooKeeper holds in the same form; groups and transactions are records in
topics. The broker has to be stopped. The store is put aside last, and a note takes its place, so that nobody starts the broker alone again by mistake: two histories could not be joined.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.app import STORE_FILE
from millstream.control import znodes
from millstream.ports.coordination import Coordination, CoordinationError, Create, Node, Write, sliced
from millstream.ports.embedded_coordination import MOVED_FILE, CorruptStore, EmbeddedCoordination
from millstream.ports.files import Files, RealFiles

LOCK_FILE = ".lock"


class MigrationError(Exception):
    """It cannot be done; nothing has changed unless the message says so."""


class Migrated(NamedTuple):
    """What was taken over."""

    cluster_id: str
    topics: int
    nodes: int


async def migrate_to_zookeeper(connect: str, log_dirs: Sequence[str], *, timeout_s: float) -> Migrated:
    """To the ZooKeeper at HOST:PORT[/CHROOT]."""
    from millstream.ports.zookeeper_coordination import ZooKeeperCoordination

    try:
        zookeeper = await ZooKeeperCoordination(connect).open(int(timeout_s * 1000))
    except (ValueError, CoordinationError) as error:
        raise MigrationError(str(error)) from None
    try:
        return await migrate_to(zookeeper, connect, log_dirs)
    except CoordinationError as error:
        raise MigrationError(f"ZooKeeper at {connect}: {error}; start again with another chroot") from None
    finally:
        await zookeeper.close()


async def migrate_to(
    coordination: Coordination, address: str, log_dirs: Sequence[str], *, files: Files | None = None
) -> Migrated:
    """``address`` is how a broker finds the service: what the note tells."""
    files = files or RealFiles()
    store = _store_path(files, log_dirs)
    locks = [(path, files.lock(os.path.join(path, LOCK_FILE))) for path in log_dirs]
    try:
        for path, lock in locks:
            if lock is None:
                raise MigrationError(f"a broker runs on {path}: stop it first")
        nodes = await _read(files, store)
        await _write(coordination, nodes)
        await _compare(coordination, nodes)
        files.write_atomic(os.path.join(os.path.dirname(store), MOVED_FILE), f"{address}\n".encode())
        files.rename(store, f"{store}.migrated")
        files.sync_dir(os.path.dirname(store))
    finally:
        for _path, lock in locks:
            if lock is not None:
                lock.release()
    topics = [path for path in nodes if path.startswith(znodes.TOPICS + "/") and path.count("/") == 3]
    cluster_id = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID].data)
    return Migrated(cluster_id, len(topics), len(nodes))


def _store_path(files: Files, log_dirs: Sequence[str]) -> str:
    for path in log_dirs:
        if files.exists(os.path.join(path, MOVED_FILE)):
            there = files.read_bytes(os.path.join(path, MOVED_FILE)).decode().strip()
            raise MigrationError(f"the metadata of {path} is in ZooKeeper already: zookeeper.connect={there}")
        if files.exists(os.path.join(path, STORE_FILE)):
            return os.path.join(path, STORE_FILE)
    raise MigrationError(f"there is no {STORE_FILE} in {', '.join(log_dirs)}: no broker has run there alone")


async def _read(files: Files, path: str) -> dict[str, Node]:
    store = EmbeddedCoordination(files, path)
    try:
        nodes = await store.load()
    except CorruptStore as error:
        raise MigrationError(str(error)) from None
    await store.close()
    return dict(sorted(nodes.items()))


async def _write(coordination: Coordination, nodes: dict[str, Node]) -> None:
    """The cluster id comes last: before it is there, no broker takes the tree for a cluster."""
    if await coordination.get(znodes.CLUSTER_ID) is not None:
        raise MigrationError("that ZooKeeper holds a cluster already: give another chroot, HOST:PORT/name")
    there = await coordination.load()
    if left := [path for path in nodes if path in there and there[path].data]:
        raise MigrationError(f"that ZooKeeper holds {left[0]} already: give another chroot, HOST:PORT/name")
    writes: list[list[Write]] = [
        [Create(path, node.data)]
        for path, node in nodes.items()
        if path != znodes.CLUSTER_ID and path not in there
    ]
    for some in sliced([], writes):
        await coordination.multi(some)
    await coordination.multi([Create(znodes.CLUSTER_ID, nodes[znodes.CLUSTER_ID].data)])


async def _compare(coordination: Coordination, nodes: dict[str, Node]) -> None:
    found = await coordination.load()
    for path, node in nodes.items():
        if path not in found or found[path].data != node.data:
            raise MigrationError(f"{path} did not arrive in ZooKeeper; the store is as it was")
