"""All logs of a broker: several data directories, creating, finding and deleting logs, checkpoints, shutdown.

A directory whose disk fails goes offline with its partitions, which answer KAFKA_STORAGE_ERROR; the others go on. A
partition whose flushed data is damaged is offline by itself. Both are in `offline`, with the reason. Methods that
wait for the disk say so; all others are for the loop's thread.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log import flushing
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.full import FullDirectories
from millstream.log.directories.ids import assign_ids
from millstream.log.directories.log_directory import CHECKPOINTS, LogDir, LogDirError, Offsets
from millstream.log.errors import CorruptFile, CorruptLog, DamagedBatch, StorageError, concerns_one_file
from millstream.log.flushing import FlushJob
from millstream.log.host import LogHost
from millstream.log.integrity.damage import DamageRegister
from millstream.log.partition_log import PartitionLog
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.log.recovery import opening
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.scheduled_deletion import Doomed
from millstream.log.segments.segment import Segment
from millstream.log.state import LogState
from millstream.ports.files import Files
from millstream.wire.records.batch import CorruptBatch

if TYPE_CHECKING:
    from millstream.log.directories.relocation import ReplicaMove

logger = logging.getLogger(__name__)

_MOST_WISHES: Final = 10_000  # for logs that are not here; topics that are never made may be named, too
_MANY: Final = 32  # logs with unsynced data, beyond which their file system is synced as a whole

__all__ = ["LogDir", "LogDirError", "LogManager", "ManagerSettings"]


class ManagerSettings(NamedTuple):
    """Broker settings that concern all logs."""

    producer_expiration_ms: int = 24 * 3600 * 1000
    verify_transactions: bool = False
    verify_reads: bool = True
    max_open_segments: int = 1024
    max_index_bytes: int = 64 << 20
    writeback_bytes: int = 8 << 20
    flush_bytes: int = 64 << 20
    delete_delay_ms: int = 60_000  # log.segment.delete.delay.ms, for whole partitions


class LeftBehind(NamedTuple):
    """Where a log was before it moved, and where it ended then."""

    directory: str
    end_offset: int
    renamed: bool = False


class CheckpointJob(NamedTuple):
    """A checkpoint file to be written: `run` waits for the disk."""

    log_dir: LogDir
    name: str
    offsets: Offsets
    version: int

    def run(self) -> None:
        try:
            self.log_dir.write_checkpoint(self.name, self.offsets, self.version)
        finally:
            self.log_dir.under_way[self.name].pop(self.version, None)


class LogManager(LogHost):
    """The logs of one broker. `config_for` gives the settings of a topic, `clock` the time in ms."""

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        *,
        config_for: Callable[[str], LogConfig],
        clock: Callable[[], int],
        settings: ManagerSettings = ManagerSettings(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(files)
        paths = [os.path.abspath(path) for path in directories]
        if len(set(paths)) < len(paths):
            raise LogDirError(f"a data directory is named twice: {', '.join(paths)}")
        self.dirs = {path: LogDir(files, path) for path in paths}
        self.config_for = config_for
        self.clock = clock
        self.settings = settings
        self.writeback_bytes = settings.writeback_bytes
        self.flush_bytes = settings.flush_bytes
        self.pool = OpenFiles(settings.max_open_segments, settings.max_index_bytes)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.futures: dict[TopicPartition, ReplicaMove] = {}
        self.left_behind: dict[LogState, LeftBehind] = {}  # until the copy is durable
        self.interrupted_moves: list[tuple[TopicPartition, str]] = []
        self._wanted_in: dict[TopicPartition, str] = {}
        self.offline: dict[TopicPartition, str] = {}
        self._isolated: dict[TopicPartition, LogDir] = {}  # damaged, in a directory that works
        self.doomed: list[Doomed] = []
        self.flush_queue: dict[LogState, None] = {}
        self.writeback_queue: dict[LogState, None] = {}
        self.unfinished_cuts: dict[LogState, None] = {}
        self.timed_flushes: WeakSet[LogState] = WeakSet()
        self.full = FullDirectories(files)
        self.wake: Callable[[], None] = lambda: None
        self.on_flushed: Callable[[LogState], None] = lambda log: None
        self.on_cut: Callable[[LogState], None] = lambda log: None  # an interrupted cut is done
        self.on_isolated: Callable[[TopicPartition], None] = lambda tp: None
        # Whether another replica can serve what is damaged here, so that this one had better go offline.
        self.has_better_replica: Callable[[TopicPartition], bool] = lambda tp: False
        self.damage = DamageRegister(clock)
        self.on_directory_failed: Callable[[LogDir, list[TopicPartition]], None] = (
            lambda log_dir, partitions: None
        )
        self.call_soon: Callable[[Callable[[], None]], object] = lambda call: call()
        self._thread = threading.get_ident()
        self._version = 0
        self._rate_limited = RateLimitedLog(logger, clock)

    # -- starting

    def open(self) -> None:
        """Lock the directories and read their identity. Raises LogDirError where the broker must not start."""
        try:
            for log_dir in self.dirs.values():
                log_dir.open()
        except LogDirError:
            for log_dir in self.dirs.values():
                log_dir.close(clean_broker_epoch=None)
            raise
        if not self.online_dirs():
            reasons = "; ".join(f"{log_dir.path}: {log_dir.reason}" for log_dir in self.dirs.values())
            raise LogDirError(f"none of the data directories can be used: {reasons}")

    @property
    def cluster_id(self) -> str | None:
        """As the directories have it; raises LogDirError where they do not agree."""
        ids = {log_dir.meta["cluster.id"] for log_dir in self.dirs.values() if "cluster.id" in log_dir.meta}
        if len(ids) > 1:
            raise LogDirError(f"the data directories belong to different clusters: {', '.join(sorted(ids))}")
        return next(iter(ids), None)

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Settle whose directories they are; those that could not be opened are told of here."""
        for log_dir in self.dirs.values():
            if not log_dir.online:
                logger.error("the data directory %s is offline: %s", log_dir.path, log_dir.reason)
        ids = assign_ids(self.dirs.values())
        for log_dir in self.online_dirs():
            try:
                log_dir.identify(cluster_id, node_id, ids)
            except OSError as error:
                self.disk_failed(log_dir.path, "cannot write meta.properties", error)

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs.values() if log_dir.online]

    @property
    def clean_broker_epoch(self) -> int:
        """The broker epoch of the last clean shutdown, the same in every directory; else -1."""
        epochs = {log_dir.clean_broker_epoch for log_dir in self.dirs.values()}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return -1 if epoch is None else epoch

    @property
    def may_lack_records(self) -> bool:
        """The machine went down while the directories were in use: the ends of logs may be gone."""
        return any(log_dir.may_lack_records for log_dir in self.online_dirs())

    def note_machine(self) -> None:
        """The controller knows that. Waits for the disk."""
        for log_dir in self.online_dirs():
            try:
                log_dir.note_machine()
            except OSError as error:
                self.disk_failed(log_dir.path, "cannot write meta.properties", error)

    def load(self) -> Iterator[PartitionLog | None]:
        """Open every log, one per step (None: one that stays offline). Each step waits for the disk."""
        for log_dir in self.online_dirs():
            try:
                log_dir.read_state()
                found = sorted(self.files.listdir(log_dir.path))
            except OSError as error:
                self.fail_directory(log_dir.path, f"cannot read it: {error}")
                continue
            for name in found:
                parsed = file_names.parse_directory(name)
                if parsed is not None and log_dir.online and self.files.is_dir(log_dir.file(name)):
                    yield self._load_one(log_dir, name, parsed)

    def _load_one(self, log_dir: LogDir, name: str, parsed: file_names.Directory) -> PartitionLog | None:
        tp, kind = parsed
        path = log_dir.file(name)
        if kind == "delete":
            self.doom_tree(log_dir.path, path)
            return None
        if kind == "future":
            self.interrupted_moves.append((tp, log_dir.path))
            self.doom_tree(log_dir.path, path)
            return None
        if kind == "stray":
            logger.warning("%s is a stray replica; it is left alone", path)
            return None
        try:
            log = self._open_log(log_dir, path, tp)
        except OSError as error:
            if not concerns_one_file(error):
                self.fail_directory(log_dir.path, f"cannot load {tp}: {error}")
                return None
            self._isolate(log_dir, tp, str(error))
            return None
        except (CorruptLog, CorruptFile, CorruptBatch, ApiError, ValueError) as error:
            self._isolate(log_dir, tp, str(error))
            return None
        self._adopt(tp, log)
        return log

    def _open_log(self, log_dir: LogDir, path: str, tp: TopicPartition) -> PartitionLog:
        points, starts, watermarks, cleaned = (log_dir.checkpoints[name] for name in CHECKPOINTS)
        log = opening.load(
            self, self.pool, path, tp, self.config_for(tp.topic), clean=log_dir.clean,
            power_lost=log_dir.power_lost, recovery_point=points.get(tp, 0), log_start=starts.get(tp, 0), now_ms=self.clock(),
            producer_expiration_ms=self.settings.producer_expiration_ms, verify_reads=self.settings.verify_reads,
            log_start_known=log_dir.log_starts_known,
        )  # fmt: skip
        log.restore_high_watermark(watermarks.get(tp, 0))
        log.cleaned_offset = cleaned.get(tp, -1)
        return self._configured(log)

    def reconfigure(self, settings: ManagerSettings) -> None:
        """Takes new settings to every log, present and to come."""
        self.settings = settings
        for log in self.logs.values():
            self._configured(log)

    def _configured(self, log: PartitionLog) -> PartitionLog:
        log.producer_expiration_ms = self.settings.producer_expiration_ms
        log.verify_transactions = self.settings.verify_transactions
        return log

    def _isolate(self, log_dir: LogDir, tp: TopicPartition, reason: str) -> None:
        logger.error("the partition %s stays offline: %s", tp, reason)
        self.offline[tp] = reason
        self._isolated[tp] = log_dir

    def _adopt(self, tp: TopicPartition, log: PartitionLog) -> None:
        """Two directories of one partition are what a crash in the middle of a move leaves: both are complete then.
        The longer one is kept, the other is put aside."""
        other = self.logs.get(tp)
        if other is not None:
            log, other = (log, other) if log.log_end_offset > other.log_end_offset else (other, log)
            logger.warning(
                "%s is both in %s and in %s; the latter is put aside", tp, log.directory, other.directory
            )
            self._rename(other, "stray")
        self.logs[tp] = log
        self.offline.pop(tp, None)

    # -- finding, creating, deleting

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        """The log; None where there is none. Raises ApiError(KAFKA_STORAGE_ERROR) where it is offline."""
        log = self.logs.get(tp)
        if log is None and tp in self.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline: {self.offline[tp]}")
        return log

    def online_dir(self, directory: str) -> LogDir:
        """Raises ApiError where it is none of log.dirs, or has failed."""
        found = self.dirs.get(os.path.abspath(directory))
        if found is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"{directory} is not one of log.dirs")
        if not found.online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline: {found.reason}")
        return found

    def prefer(self, tp: TopicPartition, log_dir: LogDir) -> None:
        """Where a log is to be made that is not here yet. Not kept over a restart, as in Kafka."""
        self._wanted_in[tp] = log_dir.path
        while len(self._wanted_in) > _MOST_WISHES:
            del self._wanted_in[next(iter(self._wanted_in))]

    def forget_preferred(self, topic: str) -> None:
        """The topic is gone."""
        for tp in [tp for tp in self._wanted_in if tp.topic == topic]:
            del self._wanted_in[tp]

    def create(
        self, tp: TopicPartition, topic_id: uuid.UUID, *, directory: str | None = None, start_offset: int = 0
    ) -> PartitionLog:
        """A new log in the given directory, else in the preferred one, else in the one with the fewest. Raises ApiError."""
        if self.get(tp) is not None:
            raise ValueError(f"the log of {tp} exists already")
        log_dir = self._choose(directory or self._preferred(tp))
        self.forget_checkpoints(log_dir, tp)
        path = log_dir.file(file_names.directory_name(tp))
        if self.files.exists(path):
            logger.warning("%s holds another log of %s; it is put aside", path, tp)
            self._set_aside(log_dir, tp, "stray")
        try:
            log = PartitionLog.create(
                self, self.pool, path, tp, self.config_for(tp.topic),
                topic_id=topic_id, start_offset=start_offset, now_ms=self.clock(),
            )  # fmt: skip
        except StorageError as error:
            if not error.passing:
                self.fail_directory(log_dir.path, error.message)
            else:
                if error.full:
                    self.full.refused(log_dir.path)
                with suppress(OSError):  # every further try would put the remains of the one before aside
                    self.files.rmtree(path)
            raise
        self.logs[tp] = self._configured(log)
        self._wanted_in.pop(tp, None)
        return log

    def _preferred(self, tp: TopicPartition) -> str | None:
        """A directory that failed meanwhile is no reason to go without the replica."""
        wanted = self._wanted_in.get(tp)
        return wanted if wanted is not None and self.dirs[wanted].online else None

    def _choose(self, directory: str | None) -> LogDir:
        if directory is not None:
            return self.online_dir(directory)
        online = self.online_dirs()
        if not online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no data directory is online")
        online = [log_dir for log_dir in online if log_dir.path not in self.full.paths] or online
        if len(online) == 1:
            return online[0]
        used = [log.log_dir for log in self.logs.values()] + [move.log_dir for move in self.futures.values()]
        counts = Counter(used)
        return min(online, key=lambda log_dir: counts[log_dir.path])

    def forget_checkpoints(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """What checkpoints say of an earlier log of the same name must not be applied to the new one."""
        for name in CHECKPOINTS:
            if log_dir.claims(name, tp) is not None:
                self._write_now(log_dir, name)

    def delete(self, tp: TopicPartition) -> None:
        """Rename the log's directory, so that it is gone even after a crash; its files go later."""
        for log_dir, path in self._take_out(tp, "delete"):
            self._doom(log_dir, (path,), self.settings.delete_delay_ms, tree=True)

    def put_aside(self, tp: TopicPartition) -> None:
        """A replica that this broker should not have, and that nobody has deleted: kept, but out of the way."""
        self._take_out(tp, "stray")

    def _take_out(self, tp: TopicPartition, kind: str) -> list[tuple[str, str]]:
        """Where its directories are then, and what they are called."""
        move = self.futures.pop(tp, None)
        if move is not None:
            move.cancelled = True
        found = []
        log = self.logs.pop(tp, None)
        if log is not None:
            self.remove_left_behind(log)
            self._rename(log, kind)
            found.append((log.log_dir, log.directory))
        damaged_in = self._isolated.pop(tp, None)
        if damaged_in is not None:
            found.append((damaged_in.path, self._set_aside(damaged_in, tp, kind)))
        self.offline.pop(tp, None)
        self.damage.forget(tp)
        return found

    def _set_aside(self, log_dir: LogDir, tp: TopicPartition, kind: str) -> str:
        """Renames a partition's directory that no open log uses."""
        path = log_dir.file(file_names.directory_name(tp, kind))
        try:
            self.files.rename(log_dir.file(file_names.directory_name(tp)), path)
        except OSError as error:
            raise self.disk_failed(log_dir.path, f"cannot rename the directory of {tp}", error) from error
        return path

    def _rename(self, log: PartitionLog, kind: str) -> None:
        path = os.path.join(log.log_dir, file_names.directory_name(log.tp, kind))
        self.flush_queue.pop(log, None)
        self.writeback_queue.pop(log, None)
        self.unfinished_cuts.pop(log, None)
        log.close(clean=False)
        try:
            self.files.rename(log.directory, path)
        except OSError as error:
            raise self.disk_failed(log.log_dir, f"cannot rename {log.directory}", error) from error
        log.segment_list.moved_to(path)

    # -- failing

    def disk_failed(self, path: str, what: str, cause: OSError) -> StorageError:
        """Something outside of any log failed."""
        failure = StorageError(path, what, cause)
        self._failed(failure)
        return failure

    def storage_failed(self, log: LogState, error: StorageError) -> None:
        if error.damaged:
            self._on_loop(lambda: self.isolate(log, error.message))
        else:
            self._failed(error)

    def damage_found(self, log: LogState, damage: DamagedBatch) -> ApiError:
        """Serve what is good, unless another replica has all of it."""
        self.damage.note(log.tp, damage)
        self._on_loop(partial(self._yield_to_better_replica, log, damage.message))
        return damage

    def _yield_to_better_replica(self, log: LogState, reason: str) -> None:
        if self.has_better_replica(log.tp):
            self.isolate(log, reason)

    def _failed(self, error: StorageError) -> None:
        if error.full:
            self._on_loop(lambda: self.full.refused(error.directory))
        if error.passing:
            self._rate_limited.log(logging.ERROR, error.directory, error.message)
        else:
            self._on_loop(lambda: self.fail_directory(error.directory, error.message))

    def _on_loop(self, call: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            call()
        else:
            self.call_soon(call)

    def fail_directory(self, path: str, reason: str) -> None:
        """Take a directory offline, with every partition in it."""
        log_dir = self.dirs[path]
        if not log_dir.online:
            return
        log_dir.fail(reason)
        self.full.forget(path)
        gone = []
        for tp, log in [(tp, log) for tp, log in self.logs.items() if log.log_dir == path]:
            self._retire(log, reason)
            del self.logs[tp]
            self.offline[tp] = reason
            gone.append(tp)
        for move in self.futures.values():
            move.cancelled = move.cancelled or path == move.log_dir or move.tp in gone
        self.on_directory_failed(log_dir, gone)

    def isolate(self, log: LogState, reason: str) -> None:
        """Take one partition offline: its files are damaged or gone, the disk works."""
        current = self.logs.get(log.tp)
        if current is None or current is not log:
            return  # deleted, or offline already
        del self.logs[log.tp]
        self._retire(current, reason)
        self._isolate(self.dirs[log.log_dir], log.tp, reason)
        self.on_isolated(log.tp)

    def _retire(self, log: PartitionLog, reason: str) -> None:
        log.failed = StorageError(log.log_dir, f"{log.tp} is offline ({reason})")
        log.close(clean=False)
        self.flush_queue.pop(log, None)
        self.writeback_queue.pop(log, None)
        self.unfinished_cuts.pop(log, None)

    # -- what logs ask for

    def check_truncation(self, log: LogState, offset: int) -> None:
        left = self.left_behind.get(log)
        if left is not None and offset < left.end_offset:
            # The next start would take the longer of the two, and with it records that were cut away for those appended since.
            raise StorageError(log.log_dir, f"{log.tp} is not cut before its move is durable")

    def before_truncation(self, log: LogState, offset: int, *, everything: bool) -> None:
        log_dir = self.dirs[log.log_dir]
        for name in CHECKPOINTS:
            # One that is being written, in a thread, does not know of the cut: whatever is written now supersedes it.
            if everything or (log_dir.claims(name, log.tp) or 0) > offset:
                self._write_now(log_dir, name)

    def truncation_unfinished(self, log: LogState) -> None:
        self.unfinished_cuts[log] = None

    def _write_now(self, log_dir: LogDir, name: str) -> None:
        try:
            self.checkpoint_job(log_dir, name).run()
        except OSError as error:
            raise self.disk_failed(log_dir.path, f"cannot write {name}", error) from error

    def checkpointed_log_start(self, log: LogState) -> int:
        return self.dirs[log.log_dir].checkpoints[file_names.LOG_STARTS].get(log.tp, 0)

    def flush_wanted(self, log: LogState) -> None:
        self.flush_queue[log] = None
        self.wake()

    def flush_by_time(self, log: LogState) -> None:
        self.timed_flushes.add(log)

    def writeback_due(self, log: LogState) -> None:
        # Asked for by every append until it is done, also while the disk rests: one wake-up is enough.
        if log not in self.writeback_queue:
            self.writeback_queue[log] = None
            self.wake()

    def discard(
        self, directory: str, segments: Sequence[Segment], snapshots: Sequence[str], *, delay_ms: int
    ) -> None:
        """Rename to `.deleted` at once; the files go after file.delete.delay.ms. Done again after a failure it passes over those that have
        been renamed, which may be gone by then."""
        paths: list[str] = []
        try:
            for segment in segments:
                if segment.suffix != file_names.DELETED:
                    segment.close()
                    segment.rename(file_names.DELETED)
                    paths += segment.paths()
            for path in snapshots:
                try:
                    self.files.rename(path, path + file_names.DELETED)
                    paths.append(path + file_names.DELETED)
                except FileNotFoundError:
                    pass
        finally:
            parsed = file_names.parse_directory(os.path.basename(directory))
            log = self.logs.get(parsed.tp) if parsed is not None else None
            start = (log.tp, log.log_start_offset) if log is not None else None
            self._doom(os.path.dirname(directory), tuple(paths), delay_ms, log_start=start)

    def _doom(
        self,
        log_dir: str,
        paths: tuple[str, ...],
        delay_ms: int,
        *,
        tree: bool = False,
        log_start: tuple[TopicPartition, int] | None = None,
    ) -> None:
        if paths:
            self.doomed.append(Doomed(self.clock() + delay_ms, log_dir, paths, tree, log_start))

    def doom_tree(self, log_dir: str, path: str) -> None:
        """A directory that is good for nothing any more."""
        self._doom(log_dir, (path,), 0, tree=True)

    def rename_left_behind(self, log: LogState) -> str:
        """What the log has moved away from is no log any more, once the data directory that is returned is synced."""
        left = self.left_behind[log]
        log_dir = os.path.dirname(left.directory)
        if not left.renamed:
            gone = os.path.join(log_dir, file_names.directory_name(log.tp, "delete"))
            try:
                self.files.rename(left.directory, gone)
            except OSError as error:
                raise self.disk_failed(log_dir, f"cannot rename {left.directory}", error) from error
            self.left_behind[log] = LeftBehind(gone, left.end_offset, renamed=True)
        return log_dir

    def remove_left_behind(self, log: LogState) -> None:
        """If there is anything."""
        if log in self.left_behind:
            log_dir = self.rename_left_behind(log)
            gone = self.left_behind.pop(log).directory
            self._doom(log_dir, (gone,), self.settings.delete_delay_ms, tree=True)

    def take_doomed(self, now_ms: int) -> list[Doomed]:
        """What may be removed now; the caller removes it, in a thread."""
        due = [item for item in self.doomed if item.due_ms <= now_ms and self._may_go(item)]
        if due:
            self.doomed = [item for item in self.doomed if item not in due]
        return due

    def _may_go(self, item: Doomed) -> bool:
        if item.log_start is None or item.log_start[0] not in self.logs:
            return True
        tp, offset = item.log_start
        return self.dirs[item.log_dir].checkpoints[file_names.LOG_STARTS].get(tp, 0) >= offset

    # -- checkpoints and shutdown

    def checkpoint_job(self, log_dir: LogDir, name: str) -> CheckpointJob:
        """The present offsets of a directory's logs. Run it in a thread."""
        self._version += 1
        job = CheckpointJob(log_dir, name, self._offsets(log_dir, name), self._version)
        log_dir.under_way[name][job.version] = job.offsets
        return job

    def _offsets(self, log_dir: LogDir, name: str) -> Offsets:
        before = log_dir.checkpoints[name]
        offsets = {
            tp: before[tp] for tp, where in self._isolated.items() if where is log_dir and tp in before
        }
        for tp, log in self.logs.items():
            if log.log_dir == log_dir.path:
                if name == file_names.RECOVERY_POINTS:
                    offsets[tp] = log.recovery_point
                elif name == file_names.HIGH_WATERMARKS:
                    offsets[tp] = log.high_watermark
                elif name == file_names.CLEANER_OFFSETS:
                    if log.cleaned_offset >= 0:
                        offsets[tp] = log.cleaned_offset
                elif log.log_start_offset > 0:
                    # Kafka leaves it out where the first segment says the same; but that file's creation may not have
                    # reached the disk yet.
                    offsets[tp] = log.log_start_offset
        if name == file_names.LOG_STARTS:
            # A log that is about to move here begins where it does when the copy takes its place.
            for tp, move in self.futures.items():
                if move.target is log_dir and move.log.log_start_offset > 0:
                    offsets[tp] = move.log.log_start_offset
        return offsets

    def checkpoint(self, names_: Iterable[str] = CHECKPOINTS) -> None:
        """All checkpoints of all directories. Waits for the disk."""
        for log_dir in self.online_dirs():
            for name in names_:
                self._write_now(log_dir, name)

    def close(self, *, broker_epoch: int | None) -> None:
        """Close every log and let go of the directories. Waits for the disk. With a broker epoch the shutdown is
        clean and the next start need not check anything."""
        broken = {log_dir.path for log_dir in self._isolated.values()}
        if broker_epoch is not None:
            broken |= self._close_logs()
        for log in self.logs.values():
            log.close(clean=False)
        for log_dir in self.dirs.values():
            clean = broker_epoch if log_dir.online and log_dir.path not in broken else None
            try:
                if log_dir.online and broker_epoch is not None:
                    self.checkpoint_all(log_dir)
                log_dir.close(clean_broker_epoch=clean)
            except OSError as error:
                logger.error("cannot close the data directory %s: %s", log_dir.path, error)

    def _close_logs(self) -> set[str]:
        """Flush every log; the directories where that failed. Many logs are synced with their file system."""
        broken: set[str] = set()
        jobs: dict[str, list[tuple[PartitionLog, FlushJob]]] = {}
        for log in list(self.logs.values()):
            try:
                flushing.finish(log)
                job = FlushJob.prepare(log)
            except StorageError as error:
                broken.add(error.directory)
                continue
            if job is not None:
                jobs.setdefault(log.log_dir, []).append((log, job))
        for path, pairs in jobs.items():
            try:
                self._flush_together(path, pairs)
            except OSError as error:
                logger.error("cannot flush the logs in %s: %s", path, error)
                broken.add(path)
        return broken

    def _flush_together(self, path: str, pairs: list[tuple[PartitionLog, FlushJob]]) -> None:
        together = len(pairs) > _MANY
        if together:
            for _, job in pairs:
                job.write()
            together = self.files.sync_all(path)
        for _, job in pairs:
            if not together:
                job.run()
            job.completed()

    def checkpoint_all(self, log_dir: LogDir) -> None:
        for name in CHECKPOINTS:
            self.checkpoint_job(log_dir, name).run()
