"""Moving a replica to another data directory of the same broker (AlterReplicaLogDirs, KIP-113).

The files are copied to `<topic>-<n>.<unique>-future` in a thread while the log goes on, again and again until little is
missing. The rest is copied on the loop, where nothing is appended meanwhile; the copy takes the log's place and name,
is flushed, and only then the old directory goes. If the broker dies before that, both are there at the next start, and
the longer one is kept; so the log is not cut below where it was switched until the old directory is gone.

Leaders and followers move alike: roles change nothing in the log, and after a truncation all is copied again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import format_partition_metadata
from millstream.log.directories.log_directory import LogDir
from millstream.log.errors import StorageError
from millstream.log.housekeeping import Housekeeping
from millstream.log.manager import LeftBehind, LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.producers import snapshot
from millstream.log.segments.segment import Segment

logger = logging.getLogger("millstream.log.moving")

_CHUNK: Final = 1 << 20
_LAST_PART: Final = 1 << 20  # what may be copied on the loop
_PIECE: Final = 16 << 20  # what is copied in one go in a thread
_LEAST_PIECE: Final = 64 << 10
_WAIT_S: Final = 0.1

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
        self.directory = target.file(file_names.directory_name(log.tp, "future"))
        self.cancelled = False
        self._generation = log.flushes.generation
        self._copied: dict[Segment, int] = {}
        self._synced: set[Segment] = set()

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
        if self.log.flushes.generation != self._generation:
            self._generation = self.log.flushes.generation
            self._copied.clear()
            self._synced.clear()
        current = set(self.log.segments)
        for segment in [s for s in self._copied if s not in current]:
            del self._copied[segment]
        self._synced &= current
        parts = [Part(s, self._copied.get(s, 0), s.size) for s in self.log.segments]
        return [part for part in parts if part.end > part.position or part.segment not in self._copied]

    def copy(self, parts: list[Part]) -> None:
        """Waits for the disk."""
        for segment, position, end in parts:
            self._synced.discard(segment)
            out = self._files.open(self._path(segment, file_names.LOG), create=True)
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
            raise self.log.failure("cannot read", error) from error
        if not chunk:
            raise SourceChanged
        return chunk

    def sync(self) -> None:
        """Waits for the disk."""
        for segment in [s for s in self._copied if s not in self._synced]:
            self._files.sync_file(self._path(segment, file_names.LOG))
            self._synced.add(segment)

    def is_synced(self, parts: list[Part]) -> bool:
        """But for what is missing."""
        return self._copied.keys() - {part.segment for part in parts} <= self._synced

    def _synced_below(self) -> int:
        """What is below this offset need not be synced again."""
        unsynced = (s.base_offset for s in self.log.segments if s not in self._synced)
        return next(unsynced, self.log.log_end_offset)

    def _path(self, segment: Segment, kind: str) -> str:
        return os.path.join(self.directory, file_names.segment_name(segment.base_offset) + kind)

    def switch(self) -> None:
        """On the loop: copy the rest and let the log go on in the copy."""
        self.copy(self.plan())
        old, end = self.log.directory, self.log.log_end_offset
        self._remove_leftovers()
        for segment in self.log.segments:
            for kind, data in segment.index_files():
                self._files.write_bytes(self._path(segment, kind), data)
        for name, data in self._small_files():
            self._files.write_bytes(os.path.join(self.directory, name), data)
        final = self.target.file(file_names.directory_name(self.tp))
        self._files.rename(self.directory, final)
        self.directory = final
        self.log.relocate(final, synced_below=self._synced_below())
        self._manager.left_behind[self.log] = LeftBehind(old, end)

    def _small_files(self) -> list[tuple[str, bytes]]:
        """(name, contents) of what stands beside the segments, as it is now."""
        log = self.log
        producers = snapshot.encode(log.producer_state.snapshot())
        files = [
            (file_names.LEADER_EPOCHS, log.epochs.encode()),
            (file_names.segment_name(log.log_end_offset) + file_names.SNAPSHOT, producers),
        ]
        if log.topic_id is not None:
            files.append((file_names.PARTITION_METADATA, format_partition_metadata(log.topic_id)))
        return files

    def _remove_leftovers(self) -> None:
        wanted = {file_names.segment_name(s.base_offset) + file_names.LOG for s in self.log.segments}
        for name in self._files.listdir(self.directory):
            if name not in wanted:
                self._files.unlink(os.path.join(self.directory, name))


def whole_speed() -> float:
    return math.inf


class Mover:
    """Starts moves and sees them through. All together copy no more than ``max_bytes_per_s`` says, which may change at any time."""

    def __init__(
        self,
        manager: LogManager,
        housekeeping: Housekeeping,
        max_bytes_per_s: Callable[[], float] = whole_speed,
    ) -> None:
        self._manager = manager
        self._housekeeping = housekeeping
        self._max_bytes_per_s = max_bytes_per_s
        self._ahead = 0.0  # bytes that were copied and that the rate has not yet made up for
        self._measured_s = 0.0

    def begin(self, tp: TopicPartition, directory: str) -> None:
        """Raises ApiError; returns when the move has begun (or the replica is there already)."""
        manager = self._manager
        target = manager.online_dir(directory)
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
        manager = self._manager
        moved = False
        try:
            manager.forget_checkpoints(move.target, move.tp)
            manager.files.makedirs(move.directory)
            moved = await self._copy_and_switch(move)
            if moved:
                logger.info("%s moved to %s", move.tp, move.directory)
                await self._settle(move.log)
        except StorageError as error:
            logger.error("the move of %s to %s failed: %s", move.tp, move.target.path, error.message)
        except OSError as error:
            manager.disk_failed(move.target.path, f"cannot move {move.tp} here", error)
        finally:
            if not moved:
                manager.doom_tree(move.target.path, move.directory)
            if manager.futures.get(move.tp) is move:
                del manager.futures[move.tp]

    async def _settle(self, log: PartitionLog) -> None:
        """The old directory goes when the copy is durable. A full disk is waited for: until then the log cannot be cut."""
        manager = self._manager
        try:
            while log in manager.left_behind and manager.logs.get(log.tp) is log:
                try:
                    await self._housekeeping.flush(log)
                    if log in manager.left_behind:
                        await self._leave(log)
                except StorageError as error:
                    if not error.passing:
                        raise
                    await asyncio.sleep(_WAIT_S)
        finally:
            manager.left_behind.pop(log, None)

    async def _leave(self, log: PartitionLog) -> None:
        manager = self._manager
        old = manager.rename_left_behind(log)
        try:
            await self._housekeeping.blocking(partial(manager.files.sync_dir, old))
        except OSError as error:
            raise manager.disk_failed(old, f"cannot sync it after {log.tp} has left", error) from error
        manager.remove_left_behind(log)

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
        log, log_start = move.log, -1
        while self._goes_on(move):
            if log.failed is not None or log in self._manager.left_behind:
                # A cut that the full disk interrupted, or the move before this one, is not done yet.
                await asyncio.sleep(_WAIT_S)
                continue
            parts = move.plan()
            missing = sum(part.end - part.position for part in parts)
            if missing <= _LAST_PART and log_start == log.log_start_offset and move.is_synced(parts):
                return True
            if log_start != log.log_start_offset:
                log_start = log.log_start_offset
                await blocking(self._manager.checkpoint_job(move.target, file_names.LOG_STARTS).run)
            try:
                await self._copy_some(move, parts)
            except SourceChanged:
                continue
            if missing <= _LAST_PART:
                await blocking(move.sync)
        return False

    async def _copy_some(self, move: ReplicaMove, parts: list[Part]) -> None:
        """A second's worth at most, and no more before the rate allows it."""
        if self._ahead <= 0:
            self._ahead, self._measured_s = 0.0, asyncio.get_running_loop().time()
        piece = _first_bytes(parts, int(min(_PIECE, max(_LEAST_PIECE, self._max_bytes_per_s()))))
        await self._housekeeping.blocking(partial(move.copy, piece))
        self._ahead += sum(part.end - part.position for part in piece)
        await self._keep_to_rate(move)

    async def _keep_to_rate(self, move: ReplicaMove) -> None:
        """Not in the thread, which others need; the rate may change meanwhile."""
        loop = asyncio.get_running_loop()
        while self._goes_on(move):
            now_s = loop.time()
            self._ahead -= self._max_bytes_per_s() * max(now_s - self._measured_s, 1e-9)
            self._measured_s = now_s
            if self._ahead <= 0:
                return
            await asyncio.sleep(_WAIT_S)

    def _goes_on(self, move: ReplicaMove) -> bool:
        log = move.log
        offline = log.failed is not None and log.unfinished is None
        return not move.cancelled and not offline and self._manager.logs.get(move.tp) is log


def _first_bytes(parts: list[Part], size: int) -> list[Part]:
    """So much of what is missing, from its beginning."""
    chosen = []
    for segment, position, end in parts:
        chosen.append(Part(segment, position, min(end, position + size)))
        size -= chosen[-1].end - position
        if size <= 0:
            break
    return chosen
