"""Writes checkpoints in the background."""

from __future__ import annotations

import asyncio
from typing import Final

from millstream.log.directories import file_names
from millstream.log.directories.log_directory import LogDir
from millstream.log.errors import StorageError
from millstream.log.management.blocking import Blocking
from millstream.log.management.manager import LogManager

_POINTS_LATEST_S: Final = 5.0  # a recovery point that moved is in its checkpoint after this time


class CheckpointWriter:
    """The checkpoints of the online directories."""

    def __init__(self, manager: LogManager, blocking: Blocking) -> None:
        self._manager = manager
        self._blocking = blocking
        self._points_moved = False
        self._points_written = 0.0

    def note_recovery_point(self) -> None:
        """Note that a recovery point has moved."""
        self._points_moved = True

    async def write_late_recovery_points(self, now: float) -> None:
        """Write the recovery points if one has moved and the last checkpoint is old."""
        if self._points_moved and now - self._points_written >= _POINTS_LATEST_S:
            await self.write_recovery_points()

    async def write_recovery_points(self) -> None:
        self._points_moved = False
        self._points_written = asyncio.get_running_loop().time()
        await self._write_quietly(file_names.RECOVERY_POINTS)

    async def write_log_starts(self) -> None:
        await self._write_quietly(file_names.LOG_STARTS)

    async def write_high_watermarks(self) -> None:
        await self._write_quietly(file_names.HIGH_WATERMARKS)

    async def log_starts_durable(self) -> None:
        """Return when the present log starts survive any crash. Raises StorageError."""
        for log_dir in self._manager.online_dirs():
            await self._write(log_dir, file_names.LOG_STARTS)

    async def _write_quietly(self, name: str) -> None:
        for log_dir in self._manager.online_dirs():
            try:
                await self._write(log_dir, name)
            except StorageError:
                pass  # the directory is offline now

    async def _write(self, log_dir: LogDir, name: str) -> None:
        job = self._manager.checkpoints.job(log_dir, name)
        try:
            await self._blocking(job.run)
        except OSError as error:
            raise self._manager.failures.disk_failed(
                log_dir.path, f"cannot write {name}", error
            ) from error
