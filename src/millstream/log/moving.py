"""Moving a replica to another data directory of the same broker (AlterReplicaLogDirs, KIP-113).

The files are copied to `<topic>-<n>.<unique>-future` in a thread while the log goes on, again and again until little is
missing. The rest is copied on the loop, where nothing is appended meanwhile; the copy takes the log's place and name,
is flushed, and only then the old directory goes. If the broker dies before that, both are there at the next start, and
the longer one is kept.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log import names, producer_snapshot
from millstream.log.checkpoints import format_partition_metadata
from millstream.log.errors import StorageError
from millstream.log.housekeeping import Housekeeping
from millstream.log.log_dir import LogDir
from millstream.log.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.segment import Segment

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20
_LAST_PART: Final = 1 << 20  # what may be copied on the loop

Blocking = Callable[[Callable[[], None]], Awaitable[None]]


class Part(NamedTuple):
    """Bytes of a segment that are still to be copied."""

    segment: Segment
    position: int
    end: int


class SourceChanged(Exception):
    """The log was truncated, or lost segments, under the copy: look again at what is to be copied."""


class ReplicaMove:
    """A replica on its way. The manager shows it in `futures`, like a log."""

    def __init__(self, manager: LogManager, log: PartitionLog, target: LogDir) -> None:
        self._manager = manager
        self._files = manager.files
        self.log = log
        self.tp = log.tp
        self.target = target
        self.directory = target.file(names.directory_name(log.tp, "future"))
        self.cancelled = False
        self._generation = log.generation
        self._copied: dict[Segment, int] = {}
        self._synced_below = 0

    @property
    def log_dir(self) -> str:
        return self.target.path

    @property
    def size(self) -> int:
        return sum(list(self._copied.values()))

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def log_end_offset(self) -> int:
        """Up to where the copy has whole segments."""
        done = [s for s, size in list(self._copied.items()) if size == s.size]
        following = {a: b.base_offset for a, b in zip(self.log.segments, self.log.segments[1:], strict=False)}
        ends = [following.get(segment, self.log.log_end_offset) for segment in done]
        return max(ends, default=self.log.log_start_offset)

    # -- copying

    def plan(self) -> list[Part]:
        """What is missing. Compaction, retention and truncation may have changed what was copied before."""
        if self.log.generation != self._generation:
            self._generation = self.log.generation
            self._copied.clear()
        current = set(self.log.segments)
        for segment in [s for s in self._copied if s not in current]:
            del self._copied[segment]
        parts = [Part(s, self._copied.get(s, 0), s.size) for s in self.log.segments]
        return [part for part in parts if part.end > part.position or part.segment not in self._copied]

    def copy(self, parts: list[Part]) -> None:
        """Waits for the disk."""
        for segment, position, end in parts:
            out = self._files.open(self._path(segment, names.LOG), create=True)
            try:
                out.truncate(position)
                while position < end:
                    chunk = self._read(segment, position, min(_CHUNK, end - position))
                    out.append((chunk,))
                    position += len(chunk)
            finally:
                out.close()
            self._copied[segment] = end

    def _read(self, segment: Segment, position: int, n: int) -> bytes:
        try:
            chunk = segment.file().pread(position, n)
        except FileNotFoundError:
            raise SourceChanged from None
        except OSError as error:
            raise self.log.read_failed(error) from error
        if not chunk:
            raise SourceChanged
        return chunk

    def sync(self) -> None:
        """Waits for the disk. What is below the active segment then need not be synced again."""
        below = min(self.log.segments[-1].base_offset, max(s.base_offset for s in self._copied))
        for segment in list(self._copied):
            self._files.sync_file(self._path(segment, names.LOG))
        self._synced_below = below

    def _path(self, segment: Segment, kind: str) -> str:
        return os.path.join(self.directory, names.segment_name(segment.base_offset) + kind)

    def switch(self) -> None:
        """On the loop: copy the rest and let the log go on in the copy."""
        self.copy(self.plan())
        self._remove_leftovers()
        for segment in self.log.segments:
            for kind, data in segment.index_files():
                self._files.write_bytes(self._path(segment, kind), data)
        for name, data in self._small_files():
            self._files.write_bytes(os.path.join(self.directory, name), data)
        final = self.target.file(names.directory_name(self.tp))
        self._files.rename(self.directory, final)
        self.directory = final
        self.log.relocate(final, synced_below=self._synced_below)

    def _small_files(self) -> list[tuple[str, bytes]]:
        """(name, contents) of what stands beside the segments, as it is now."""
        log = self.log
        producers = producer_snapshot.encode(log.producer_state.snapshot())
        files = [
            (names.LEADER_EPOCHS, log.epochs.encode()),
            (names.segment_name(log.log_end_offset) + names.SNAPSHOT, producers),
        ]
        if log.topic_id is not None:
            files.append((names.PARTITION_METADATA, format_partition_metadata(log.topic_id)))
        return files

    def _remove_leftovers(self) -> None:
        wanted = {names.segment_name(s.base_offset) + names.LOG for s in self.log.segments}
        for name in self._files.listdir(self.directory):
            if name not in wanted:
                self._files.unlink(os.path.join(self.directory, name))


class Mover:
    """Starts moves and sees them through, one after the other."""

    def __init__(self, manager: LogManager, housekeeping: Housekeeping) -> None:
        self._manager = manager
        self._housekeeping = housekeeping

    def begin(self, tp: TopicPartition, directory: str) -> None:
        """Raises ApiError; returns when the move has begun (or the replica is there already)."""
        manager = self._manager
        target = manager.dirs.get(os.path.abspath(directory))
        if target is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"{directory} is not one of log.dirs")
        if not target.online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline: {target.reason}")
        log = manager.get(tp)
        if log is None:
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE, f"this broker has no replica of {tp}")
        running = manager.futures.get(tp)
        if running is not None and running.target is target:
            return
        if running is not None:
            running.cancelled = True
            del manager.futures[tp]
        if log.log_dir != target.path:
            move = manager.futures[tp] = ReplicaMove(manager, log, target)
            self._housekeeping.spawn(self._run(move))

    def resume(self) -> None:
        """Begin again what the last stop interrupted."""
        for tp, directory in self._manager.interrupted_moves:
            try:
                self.begin(tp, directory)
            except ApiError as error:
                logger.warning("the move of %s to %s is not resumed: %s", tp, directory, error.message)
        self._manager.interrupted_moves.clear()

    async def _run(self, move: ReplicaMove) -> None:
        manager, log = self._manager, move.log
        old = log.directory
        try:
            manager.forget_checkpoints(move.target, move.tp)
            manager.files.makedirs(move.directory)
            if not await self._copy_and_switch(move):
                manager.doom_tree(move.target.path, move.directory)
                return
            logger.info("%s moved to %s", move.tp, move.directory)
            await self._housekeeping.flush(log)
            manager.retire_directory(log, old)
        except StorageError as error:
            logger.error("the move of %s to %s failed: %s", move.tp, move.target.path, error.message)
        except OSError as error:
            manager.disk_failed(move.target.path, f"cannot move {move.tp} here", error)
        finally:
            if manager.futures.get(move.tp) is move:
                del manager.futures[move.tp]

    async def _copy_and_switch(self, move: ReplicaMove) -> bool:
        while await self._copy(move):
            try:
                move.switch()
            except SourceChanged:
                continue
            return True
        return False

    async def _copy(self, move: ReplicaMove) -> bool:
        """Until little is missing, and that is durable; False where the move was called off."""
        blocking = self._housekeeping.blocking
        synced, log_start = False, 0
        while self._goes_on(move):
            parts = move.plan()
            missing = sum(part.end - part.position for part in parts)
            if synced and missing <= _LAST_PART and log_start == move.log.log_start_offset:
                return True
            if log_start != move.log.log_start_offset:
                log_start = move.log.log_start_offset
                await blocking(self._manager.log_start_job(move.target, move.tp, log_start).run)
            try:
                await blocking(partial(move.copy, parts))
            except SourceChanged:
                continue
            if missing <= _LAST_PART:
                await blocking(move.sync)
                synced = True
        return False

    def _goes_on(self, move: ReplicaMove) -> bool:
        log = move.log
        return not move.cancelled and log.failed is None and self._manager.logs.get(move.tp) is log
