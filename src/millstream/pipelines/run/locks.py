"""Locks that the operating system releases when their holder dies.

A pipeline runs once at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from millstream.pipelines.run.layout import Layout


class LockHeld(Exception):
    """Another process has the lock. ``holder`` is what it wrote into the file."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        super().__init__(f"{path} is locked by {holder or 'another process'}")
        self.path = path
        self.holder = holder

    @property
    def holder_name(self) -> str:
        if "pid" not in self.holder:
            return "another process"
        return f"process {self.holder['pid']} on {self.holder.get('host', 'this machine')}"


class Lock:
    """An exclusive lock on a file. The file names the holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise LockHeld, without waiting."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read_holder(fd)
            os.close(fd)
            raise LockHeld(self.path, holder) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def lock_pipeline(layout: Layout, name: str) -> Lock:
    """Take the lock of a pipeline, or raise PipelineError if another run has it."""
    lock = Lock(layout.lock)
    try:
        lock.acquire()
    except LockHeld as held:
        raise PipelineError(
            f"pipeline {name} is already running ({held.holder_name})",
            hint="stop it first (`millstream pipeline status`), or pass another --checkpoint",
        ) from None
    return lock


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _read_holder(fd: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(fd, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
