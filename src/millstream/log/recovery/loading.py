"""Opens every log of the data directories at startup, and chooses between two copies of one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.deferred_deletes import DeferredDeletes
from millstream.log.directories.log_directory import LogDir
from millstream.log.directories.removal import LogRemoval
from millstream.log.directories.replica_moves import ReplicaMoves
from millstream.log.errors import CorruptFile, CorruptLog, concerns_one_file
from millstream.log.management.factory import LogFactory
from millstream.log.management.failures import StorageFailures
from millstream.log.management.registry import LogRegistry
from millstream.log.partition_log import PartitionLog
from millstream.wire.records.batch import CorruptBatch

logger = logging.getLogger("millstream.log.manager")


class LogLoader:
    """Fills the registry. Each step waits for the disk."""

    def __init__(
        self,
        factory: LogFactory,
        registry: LogRegistry,
        moves: ReplicaMoves,
        deletes: DeferredDeletes,
        removal: LogRemoval,
        failures: StorageFailures,
    ) -> None:
        self._factory = factory
        self._registry = registry
        self._moves = moves
        self._deletes = deletes
        self._removal = removal
        self._failures = failures

    def load(self, log_dir: LogDir) -> Iterator[PartitionLog | None]:
        """Open the logs of a directory, one per step; None for one that stays offline."""
        try:
            log_dir.read_state()
            names = sorted(log_dir.files.listdir(log_dir.path))
        except OSError as error:
            self._failures.fail_directory(log_dir.path, f"cannot read it: {error}")
            return
        for name in names:
            parsed = file_names.parse_directory(name)
            if parsed is not None and log_dir.online and log_dir.files.is_dir(log_dir.file(name)):
                yield self._load(log_dir, name, parsed)

    def _load(
        self, log_dir: LogDir, name: str, parsed: file_names.Directory
    ) -> PartitionLog | None:
        tp, kind = parsed
        path = log_dir.file(name)
        if kind == "delete":
            self._deletes.schedule_tree(log_dir.path, path)
            return None
        if kind == "future":
            self._moves.interrupted.append((tp, log_dir.path))
            self._deletes.schedule_tree(log_dir.path, path)
            return None
        if kind == "stray":
            logger.warning("%s is a stray replica; it is left alone", path)
            return None
        try:
            log = self._factory.open(log_dir, path, tp)
        except OSError as error:
            if not concerns_one_file(error):
                self._failures.fail_directory(log_dir.path, f"cannot load {tp}: {error}")
                return None
            self._registry.isolate(log_dir, tp, str(error))
            return None
        except (CorruptLog, CorruptFile, CorruptBatch, ApiError, ValueError) as error:
            self._registry.isolate(log_dir, tp, str(error))
            return None
        self._adopt(tp, log)
        return log

    def _adopt(self, tp: TopicPartition, log: PartitionLog) -> None:
        """Register a log. If two directories hold it, keep the longer one and rename the other.

        A crash in the middle of a relocation leaves two, and both are complete.
        """
        other = self._registry.logs.get(tp)
        if other is not None:
            log, other = (log, other) if log.log_end_offset > other.log_end_offset else (other, log)
            logger.warning(
                "%s is both in %s and in %s; the latter is kept as a stray",
                tp,
                log.directory,
                other.directory,
            )
            self._removal.rename(other, "stray")
        self._registry.logs[tp] = log
        self._registry.offline.pop(tp, None)
