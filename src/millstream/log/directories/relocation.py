"""Relocates a replica to another data directory of its broker (AlterReplicaLogDirs, KIP-113).

The files are copied to `<topic>-<n>.<unique>-future` in a thread while the log is in use,
repeatedly until little is missing. The rest is copied on the loop, so that nothing is appended. The
copy takes the place and name of the log, is flushed, and only then the old directory is deleted. If
the broker dies before that, the next start finds both and keeps the longer one. So the log is not
truncated below its end at the switch until the old directory is gone.

Leaders and followers are relocated alike: roles change nothing in the log, and after a truncation
everything is copied again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.directories import file_names
from millstream.log.directories.replica_move import CopyRange, ReplicaMove, SourceChanged
from millstream.log.errors import StorageError
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog

logger = logging.getLogger("millstream.log.moving")

_LAST_PART: Final = 1 << 20  # copied on the loop at most
_PIECE: Final = 16 << 20  # copied at a time in a thread
_MIN_PIECE: Final = 64 << 10
_WAIT_S: Final = 0.1


def unlimited() -> float:
    return math.inf


class Relocator:
    """Starts and runs relocations.

    Together they copy no more than `max_bytes_per_s`, which may change at any time.
    """

    def __init__(
        self,
        manager: LogManager,
        housekeeping: Housekeeping,
        max_bytes_per_s: Callable[[], float] = unlimited,
    ) -> None:
        self._manager = manager
        self._housekeeping = housekeeping
        self._max_bytes_per_s = max_bytes_per_s
        self._ahead = 0.0  # copied bytes that exceed the rate so far
        self._measured_s = 0.0

    def begin(self, tp: TopicPartition, directory: str) -> None:
        """Start a relocation, unless the replica is already there. Raises ApiError."""
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
            move = manager.futures[tp] = ReplicaMove(log, target)
            self._housekeeping.spawn(self._run(move))

    def resume(self) -> None:
        """Restart the relocations that the last stop interrupted."""
        for tp, directory in self._manager.moves.interrupted:
            try:
                self.begin(tp, directory)
            except ApiError as error:
                logger.warning(
                    "the relocation of %s to %s is not resumed: %s", tp, directory, error.message
                )
        self._manager.moves.interrupted.clear()

    async def _run(self, move: ReplicaMove) -> None:
        manager = self._manager
        moved = False
        try:
            manager.checkpoints.forget(move.target, move.tp)
            manager.files.makedirs(move.directory)
            moved = await self._copy_and_switch(move)
            if moved:
                logger.info("%s was relocated to %s", move.tp, move.directory)
                await self._delete_old_directory(move.log)
        except StorageError as error:
            logger.error(
                "the relocation of %s to %s failed: %s", move.tp, move.target.path, error.message
            )
        except OSError as error:
            manager.failures.disk_failed(move.target.path, f"cannot relocate {move.tp} here", error)
        finally:
            if not moved:
                manager.deletes.schedule_tree(move.target.path, move.directory)
            if manager.futures.get(move.tp) is move:
                del manager.futures[move.tp]

    async def _delete_old_directory(self, log: PartitionLog) -> None:
        """Delete the old directory once the copy is durable.

        Retry while the disk is full: until then the log cannot be truncated.
        """
        manager = self._manager
        try:
            while log in manager.moves.left_behind and manager.logs.get(log.tp) is log:
                try:
                    await self._housekeeping.flush(log)
                    if log in manager.moves.left_behind:
                        await self._remove_old_directory(log)
                except StorageError as error:
                    if not error.temporary:
                        raise
                    await asyncio.sleep(_WAIT_S)
        finally:
            manager.moves.left_behind.pop(log, None)

    async def _remove_old_directory(self, log: PartitionLog) -> None:
        manager = self._manager
        old = manager.rename_left_behind(log)
        try:
            await self._housekeeping.blocking(partial(manager.files.sync_dir, old))
        except OSError as error:
            raise manager.failures.disk_failed(
                old, f"cannot sync it after {log.tp} has left", error
            ) from error
        manager.remove_left_behind(log)

    async def _copy_and_switch(self, move: ReplicaMove) -> bool:
        while await self._copy(move):
            try:
                left_behind = move.switch()
            except SourceChanged:
                continue
            self._manager.moves.left_behind[move.log] = left_behind
            return True
        return False

    async def _copy(self, move: ReplicaMove) -> bool:
        """Copy until little is missing and the rest is durable. Return False if cancelled."""
        blocking = self._housekeeping.blocking
        log, log_start = move.log, -1
        while self._continues(move):
            if log.failed is not None or log in self._manager.moves.left_behind:
                # A truncation that a full disk interrupted, or the previous relocation, is not
                # complete yet.
                await asyncio.sleep(_WAIT_S)
                continue
            ranges = move.plan()
            missing = sum(range_.end - range_.position for range_ in ranges)
            if (
                missing <= _LAST_PART
                and log_start == log.log_start_offset
                and move.is_synced(ranges)
            ):
                return True
            if log_start != log.log_start_offset:
                log_start = log.log_start_offset
                await blocking(
                    self._manager.checkpoints.job(move.target, file_names.LOG_STARTS).run
                )
            try:
                await self._copy_some(move, ranges)
            except SourceChanged:
                continue
            if missing <= _LAST_PART:
                await blocking(move.sync)
        return False

    async def _copy_some(self, move: ReplicaMove, ranges: list[CopyRange]) -> None:
        """Copy at most what the rate allows for a second, and wait for the rate."""
        if self._ahead <= 0:
            self._ahead, self._measured_s = 0.0, asyncio.get_running_loop().time()
        piece = _first_bytes(ranges, int(min(_PIECE, max(_MIN_PIECE, self._max_bytes_per_s()))))
        await self._housekeeping.blocking(partial(move.copy, piece))
        self._ahead += sum(range_.end - range_.position for range_ in piece)
        await self._keep_to_rate(move)

    async def _keep_to_rate(self, move: ReplicaMove) -> None:
        """Wait for the rate on the loop, not in a shared thread. The rate may change."""
        loop = asyncio.get_running_loop()
        while self._continues(move):
            now_s = loop.time()
            self._ahead -= self._max_bytes_per_s() * max(now_s - self._measured_s, 1e-9)
            self._measured_s = now_s
            if self._ahead <= 0:
                return
            await asyncio.sleep(_WAIT_S)

    def _continues(self, move: ReplicaMove) -> bool:
        log = move.log
        offline = log.failed is not None and log.unfinished is None
        return not move.cancelled and not offline and self._manager.logs.get(move.tp) is log


def _first_bytes(ranges: list[CopyRange], size: int) -> list[CopyRange]:
    """Return the first bytes of the missing ranges, up to a size."""
    chosen = []
    for segment, position, end in ranges:
        chosen.append(CopyRange(segment, position, min(end, position + size)))
        size -= chosen[-1].end - position
        if size <= 0:
            break
    return chosen
