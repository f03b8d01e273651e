"""The identity of a broker: its metadata store, cluster id, locks, and migration notes.

A broker keeps its metadata in its own store, or in a ZooKeeper that it shares with others. Before
it serves, its data directories and that store must agree about the cluster. A broker whose metadata
was migrated to ZooKeeper must not continue with the old store.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable

from millstream.broker.migration import notes as migration_notes
from millstream.cluster.membership.directories import expected_directories, store_directories
from millstream.cluster.membership.registration import wait_for_id
from millstream.control import znodes
from millstream.control.features import FEATURES
from millstream.core.config import BrokerConfig
from millstream.core.ids import id_text
from millstream.log.directories import file_names
from millstream.log.directories.ids import assign_ids, check_not_replaced, warn_if_missing
from millstream.log.management.manager import LogManager
from millstream.ports.coordination import (
    ConnectionLost,
    Coordination,
    Create,
    NodeExists,
    Put,
    SessionExpired,
    Write,
)
from millstream.ports.embedded_coordination import STORE_FILE, EmbeddedCoordination
from millstream.ports.files import Files, Lock

logger = logging.getLogger("millstream.broker")

_RETRY_S = 0.2
# Time beyond a session timeout that a broker waits for another one with its id to disappear.
_REGISTRATION_S = 14.0
# A broker that does not run cannot delete anything; a few hundred kilobytes let it start.
_FULL_DISK = (
    ". Make some room there for the broker to start (1 MB is enough), then delete topics or shorten "
    "their retention"
)


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


def registration_patience_s(config: BrokerConfig) -> float:
    """Return how long a broker waits for its id while another one has it."""
    return config.integer("zookeeper.session.timeout.ms") / 1000 + _REGISTRATION_S


def is_alone(coordination: Coordination) -> bool:
    """Return whether the broker has its own store, and is the only one."""
    return isinstance(coordination, EmbeddedCoordination)


def note_cluster(config: BrokerConfig, files: Files, logs: LogManager) -> None:
    """Record the ZooKeeper in the data directories, in case zookeeper.connect is forgotten one day.

    Waits for the disk.
    """
    connect = config.get("zookeeper.connect")
    if not connect:
        return
    for log_dir in logs.online_dirs():
        try:
            migration_notes.write_note(files, log_dir.path, str(connect))
        except OSError as error:
            logger.warning("cannot record in %s where the cluster is: %s", log_dir.path, error)


class Identity:
    """Opens the metadata store, and determines the cluster of the data directories."""

    def __init__(
        self, config: BrokerConfig, files: Files, logs: LogManager, new_id: Callable[[], bytes]
    ) -> None:
        self._config = config
        self._files = files
        self._logs = logs
        self._new_id = new_id
        self._coordination: Coordination | None = None
        self._metadata_lock: Lock | None = None

    async def open(self, shared: Coordination | None) -> Coordination:
        """Return the shared coordination, or else this broker's own store.

        The data directories are open; now they are identified, too. Raise StartError if they must
        not be used.
        """
        if shared is None:
            coordination: Coordination = await self._open_store()
        else:
            coordination = self._coordination = shared
            if not is_alone(shared):
                self._reject_second_history()
        await self._identify(coordination)
        return coordination

    async def close(self) -> None:
        if self._coordination is not None:
            await self._coordination.close()
        self.release()

    def release(self) -> None:
        """Release the lock without closing anything."""
        if self._metadata_lock is not None:
            self._metadata_lock.release()
            self._metadata_lock = None

    # ---- the metadata store ----

    async def _open_store(self) -> EmbeddedCoordination:
        path = self._store_path()
        self._lock_metadata(os.path.dirname(path))
        self._reject_if_migrated()
        warn_if_missing(self._files, path, self._logs.online_dirs())
        store = EmbeddedCoordination(self._files, path)
        self._coordination = store
        try:
            await store.load()
        except OSError as error:
            hint = _FULL_DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise StartError(
                f"cannot use the metadata store {path}: {error.strerror or error}{hint}"
            ) from None
        return store

    def _store_path(self) -> str:
        path = self._metadata_dir()
        log_dir = self._logs.dirs.get(path)
        if log_dir is not None and not log_dir.online:
            raise StartError(
                f"the metadata store is in {path}, which cannot be used: {log_dir.reason}"
            )
        if not self._files.is_dir(path):
            self._files.makedirs(path)
            self._files.sync_dir(os.path.dirname(path))
        return os.path.join(path, STORE_FILE)

    def _metadata_dir(self) -> str:
        return os.path.abspath(
            str(self._config.get("metadata.log.dir") or self._config.log_dirs[0])
        )

    def _lock_metadata(self, directory: str) -> None:
        """Lock a store outside of the data directories.

        Neither a second broker nor `millstream migrate` may use it while this broker runs.
        """
        # By their real paths: a link may lead to a directory that this broker has locked.
        if os.path.realpath(directory) in map(os.path.realpath, self._logs.dirs):
            return
        self._metadata_lock = self._files.lock(os.path.join(directory, file_names.LOCK))
        if self._metadata_lock is None:
            raise StartError(f"the metadata directory {directory} is in use by another broker")

    # ---- migration ----

    def _metadata_directories(self) -> list[str]:
        """Return the directories that may have a store or a note, except offline ones."""
        path = self._metadata_dir()
        own = [path] if path not in self._logs.dirs else []
        return [*own, *(log_dir.path for log_dir in self._logs.online_dirs())]

    def _reject_if_migrated(self) -> None:
        directories = self._metadata_directories()
        if notes := migration_notes.read_notes(self._files, directories):
            unfinished = migration_notes.stores(self._files, directories)
            command = self._migrate_command(notes[0].address)
            raise StartError(migration_notes.why_not_alone(notes[0], unfinished, command))

    def _reject_second_history(self) -> None:
        """Raise if a store was not renamed: it may have metadata that ZooKeeper lacks."""
        directories = self._metadata_directories()
        if stores := migration_notes.stores(self._files, directories):
            note = next(iter(migration_notes.read_notes(self._files, directories)), None)
            address = (
                note.address if note is not None else str(self._config.get("zookeeper.connect"))
            )
            command = self._migrate_command(address)
            raise StartError(migration_notes.why_not_in_cluster(stores[0], note, command))

    def _migrate_command(self, address: str) -> str:
        metadata_dir = self._config.get("metadata.log.dir")
        return migration_notes.migrate_command(
            address, self._config.log_dirs, str(metadata_dir) if metadata_dir else None
        )

    # ---- the cluster id ----

    async def _identify(self, coordination: Coordination) -> None:
        """Determine the cluster id: of the store, the directories, the setting, or a new one."""
        logs, alone, node_id = self._logs, is_alone(coordination), self._config.node_id
        on_disk = logs.cluster_id
        setting = self._config.get("cluster.id")
        ours = on_disk or (str(setting) if setting else id_text(self._new_id()))
        may_begin = alone or on_disk is None or on_disk == setting
        cluster_id = await self._shared_cluster_id(coordination, ours, may_begin)
        in_directories = "the data directories (meta.properties)"
        for source, other in ((in_directories, on_disk), ("the setting cluster.id", setting)):
            if other is not None and other != cluster_id:
                hint = "" if alone else "; check zookeeper.connect and its chroot"
                raise StartError(
                    f"the cluster id of {source} is {other}, but the metadata store has {cluster_id}{hint}"
                )
        if not alone and any(log_dir.directory_id is None for log_dir in logs.online_dirs()):
            patience_s = registration_patience_s(self._config)
            await wait_for_id(coordination, node_id, timeout_s=patience_s)
        log_dirs = logs.dirs.values()
        if any(not log_dir.meta for log_dir in logs.online_dirs()):
            check_not_replaced(log_dirs, await expected_directories(coordination, node_id))
        logs.identify(cluster_id, node_id)
        await store_directories(coordination, node_id, assign_ids(log_dirs))

    async def _shared_cluster_id(
        self, coordination: Coordination, ours: str, may_begin: bool
    ) -> str:
        """Return the id in the store, or ours if it has none and a cluster may begin there.

        Wait if the connection is lost.
        """
        while True:
            try:
                node = await coordination.get(znodes.CLUSTER_ID)
                if node is not None:
                    return self._complete_cluster(znodes.decode_cluster_mark(node.data))
                if not may_begin:
                    raise StartError(self._no_such_cluster(ours))
                await coordination.multi(_first_nodes(ours))
            except NodeExists:
                pass  # another broker was quicker
            except (ConnectionLost, SessionExpired) as error:
                logger.info("the cluster id cannot be read now: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _complete_cluster(self, mark: znodes.ClusterMark) -> str:
        if mark.migrating:
            connect = self._config.get("zookeeper.connect")
            raise StartError(
                f"the migration of the cluster {mark.cluster_id} to zookeeper.connect={connect} is not "
                "complete; run `millstream migrate` again where it was begun"
            )
        return mark.cluster_id

    def _no_such_cluster(self, ours: str) -> str:
        connect = self._config.get("zookeeper.connect")
        return (
            f"the data directories belong to the cluster {ours}, but zookeeper.connect={connect} has no "
            f"cluster; check it and its chroot, or set cluster.id={ours} to begin one there"
        )


def _first_nodes(cluster_id: str) -> list[Write]:
    """Return the nodes that a new cluster starts with."""
    levels = {feature.name: feature.initial for feature in FEATURES}
    return [
        Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id)),
        Put(znodes.FEATURES, znodes.encode_features(levels, 1)),
    ]
