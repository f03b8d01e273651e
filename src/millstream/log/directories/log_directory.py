"""One data directory: its lock, its identity, its checkpoint files and whether it works."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import (
    decode_uuid,
    encode_uuid,
    is_sealed,
    read_clean_shutdown,
    read_meta_properties,
    read_offsets,
    write_clean_shutdown,
    write_meta_properties,
    write_offsets,
)
from millstream.log.errors import CorruptFile
from millstream.ports.files import Files, Lock

logger = logging.getLogger("millstream.log.log_dir")

Offsets = dict[TopicPartition, int]

CHECKPOINTS: Final = (
    file_names.RECOVERY_POINTS,
    file_names.LOG_STARTS,
    file_names.HIGH_WATERMARKS,
    file_names.CLEANER_OFFSETS,
)


class LogDirError(Exception):
    """A data directory that cannot be used at all. The message says what to do."""


# Names in meta.properties, which Kafka ignores.
_BOOT_ID: Final = "boot.id"
_DIRECTORY_IDS: Final = "directory.ids"


class LogDir:
    """A data directory. `reason` says why it is offline; None while it works."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.reason: str | None = None
        self.directory_id: uuid.UUID | None = None
        self.meta: dict[str, str] = {}
        self.clean = False
        self.clean_broker_epoch: int | None = None
        self.machine_restarted = False
        self._unsealed: set[str] = set()  # checkpoints that are missing, damaged, or Apache Kafka's
        self.checkpoints: dict[str, Offsets] = {name: {} for name in CHECKPOINTS}
        # Checkpoints that are being written, by version.
        self.in_progress: dict[str, dict[int, Offsets]] = {name: {} for name in CHECKPOINTS}
        self._versions = dict.fromkeys(CHECKPOINTS, 0)
        self._lock: Lock | None = None
        self._writing = threading.Lock()

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def online(self) -> bool:
        return self.reason is None

    @property
    def knows_directories(self) -> bool:
        """Whether a broker of Millstream has used it: Apache Kafka writes no such list."""
        return _DIRECTORY_IDS in self.meta

    # -- opening

    def open(self) -> None:
        """Create the directory if necessary, lock it, and read its identity.

        After an OSError the directory is offline from the start.
        """
        try:
            if not self.files.is_dir(self.path):
                self.files.makedirs(self.path)
                self.files.sync_dir(os.path.dirname(self.path))
            self._lock = self.files.lock(self.file(file_names.LOCK))
            if self._lock is None:
                raise LogDirError(f"the data directory {self.path} is in use by another broker")
            self.meta = read_meta_properties(self.files, self.file(file_names.META_PROPERTIES))
            if "directory.id" in self.meta:
                self.directory_id = decode_uuid(self.meta["directory.id"])
        except OSError as error:
            # Not logged yet: the broker may report it itself, and not start.
            self.reason = f"cannot open it: {error}"
        except (CorruptFile, ValueError) as error:
            raise LogDirError(
                f"the data directory {self.path} cannot be identified: {error}"
            ) from error

    def identify(self, cluster_id: str, node_id: int, ids: Iterable[str] = ()) -> None:
        """Check that the directory belongs to this broker. Write meta.properties if it is new.

        `ids` are those of all directories of the broker.
        """
        theirs = self.meta.get("cluster.id")
        if theirs not in (None, cluster_id):
            raise LogDirError(f"{self.path} belongs to the cluster {theirs}, not to {cluster_id}")
        node = self.meta.get("node.id", self.meta.get("broker.id"))
        if node not in (None, "-1", str(node_id)):
            raise LogDirError(
                f"{self.path} belongs to the broker {node}, not to {node_id}: start it with"
                f" node.id={node}, or name another directory in log.dirs"
            )
        self.directory_id = self.directory_id or uuid.uuid4()
        expected = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": encode_uuid(self.directory_id),
            _DIRECTORY_IDS: ",".join(sorted({*ids, encode_uuid(self.directory_id)})),
        }
        # A new directory has no boot id either: it may replace a lost one.
        boot_id = self.files.boot_id()
        self.machine_restarted = bool(boot_id) and self.meta.get(_BOOT_ID) != boot_id
        if any(self.meta.get(name) != value for name, value in expected.items()):
            self.meta = {**self.meta, **expected}
            self.meta.pop("broker.id", None)
            write_meta_properties(self.files, self.file(file_names.META_PROPERTIES), self.meta)
        if self.files.exists(self.file(file_names.ACCEPT_LOSS)):
            self.files.unlink(self.file(file_names.ACCEPT_LOSS))

    @property
    def may_lack_records(self) -> bool:
        """Whether records may be missing: unsynced data, or all data of a new directory.

        The machine lost its power, or was reset, while the directory was in use.
        """
        return self.machine_restarted and not self.clean

    @property
    def power_lost(self) -> bool:
        """Like `may_lack_records`, but only if the directory is known to have been in use here.

        A directory of Apache Kafka, for example, has no such information.
        """
        return self.may_lack_records and _BOOT_ID in self.meta

    def note_machine(self) -> None:
        """Record that the possible loss of records was handled. Waits for the disk."""
        if self.machine_restarted:
            self.meta[_BOOT_ID] = self.files.boot_id()
            write_meta_properties(self.files, self.file(file_names.META_PROPERTIES), self.meta)
            self.machine_restarted = False

    def read_state(self) -> None:
        """Read the checkpoints, and whether the last shutdown was clean.

        The clean-shutdown file is removed now: if the broker dies while it loads, the next start
        must not trust it.
        """
        for name in CHECKPOINTS:
            try:
                self.checkpoints[name] = read_offsets(self.files, self.file(name))
                if not is_sealed(self.files, self.file(name)):
                    self._unsealed.add(name)
            except CorruptFile as error:
                self._unsealed.add(name)
                logger.error("%s; it is ignored (%s)", error, _WITHOUT[name])
        if (
            file_names.LOG_STARTS in self._unsealed
            and file_names.RECOVERY_POINTS not in self._unsealed
        ):
            logger.error(
                "%s is missing or damaged (%s)",
                self.file(file_names.LOG_STARTS),
                _WITHOUT[file_names.LOG_STARTS],
            )
        marker = self.file(file_names.CLEAN_SHUTDOWN)
        self.clean_broker_epoch = read_clean_shutdown(self.files, marker)
        self.clean = self.clean_broker_epoch is not None
        if self.clean:
            self.files.unlink(marker)
            self.files.sync_dir(self.path)

    @property
    def log_starts_known(self) -> bool:
        """Whether the checkpoint of log starts exists and has our checksum."""
        return file_names.LOG_STARTS not in self._unsealed

    def fail(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            logger.error("the data directory %s is offline: %s", self.path, reason)

    # -- checkpoints

    def largest_claim(self, name: str, tp: TopicPartition) -> int | None:
        """Return the largest offset of a partition in a checkpoint, written or in progress.

        None if there is none.
        """
        versions = (self.checkpoints[name], *list(self.in_progress[name].values()))
        return max((offsets[tp] for offsets in versions if tp in offsets), default=None)

    def write_checkpoint(
        self, name: str, offsets: Mapping[TopicPartition, int], version: int
    ) -> None:
        """Write a checkpoint durably, unless a newer version was written. Waits for the disk.

        Thread-safe.
        """
        with self._writing:
            if version < self._versions[name]:
                return
            if offsets != self.checkpoints[name] or name in self._unsealed:
                write_offsets(self.files, self.file(name), offsets)
                self.checkpoints[name] = dict(offsets)
                self._unsealed.discard(name)
            self._versions[name] = version

    def close(self, *, clean_broker_epoch: int | None) -> None:
        """Write the clean-shutdown file (if the shutdown was clean) and release the lock."""
        if clean_broker_epoch is not None and self.online:
            write_clean_shutdown(
                self.files, self.file(file_names.CLEAN_SHUTDOWN), clean_broker_epoch
            )
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __repr__(self) -> str:
        return f"LogDir({self.path})"


_WITHOUT: Final = {
    file_names.RECOVERY_POINTS: "every log is checked from its start",
    file_names.LOG_STARTS: "logs start at their first segment",
    file_names.HIGH_WATERMARKS: "high watermarks start at the log start",
    file_names.CLEANER_OFFSETS: "compacted logs are cleaned from their start",
}
