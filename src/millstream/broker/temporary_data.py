"""Temporary data directories of brokers: removed at the end, or by a later process after a kill.

A directory has a file that stays locked as long as the process that created it lives. Directories
without such an owner were left behind by killed processes. Each process removes them once, before
it creates its first directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

MEMORY = "/dev/shm"
# Containers often have 64 MB there, which a few segments and their indexes fill.
ENOUGH_MEMORY_BYTES = 512 << 20
_PREFIX, _UNOWNED, _OWNER = "millstream-test-", ".new", ".owner"


@contextmanager
def temporary_data() -> Iterator[Path]:
    """Yield the path of a data directory, in memory if the system has enough of it."""
    base = base_directory()
    _sweep_once(base)
    with _own_directory(base) as temporary:
        yield temporary / "data"


def base_directory() -> Path:
    try:
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ENOUGH_MEMORY_BYTES:
            return Path(MEMORY)
    except OSError:
        pass
    return Path(tempfile.gettempdir())


@contextmanager
def _own_directory(base: Path) -> Iterator[Path]:
    """Yield a new directory with a file that stays locked as long as this process lives."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_UNOWNED, dir=base))
    lock = os.open(directory / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = directory.rename(directory.with_name(directory.name.removesuffix(_UNOWNED)))
        yield directory
    finally:
        os.close(lock)
        remove(directory)


@cache
def _sweep_once(base: Path) -> None:
    """Remove directories whose owner was killed; they may occupy memory."""
    for left in base.glob(f"{_PREFIX}*"):
        if not left.name.endswith(_UNOWNED) and _is_abandoned(left):
            remove(left)


def remove(directory: Path) -> None:
    """Remove a temporary directory, its owner file last.

    A broker that is still exiting may write files; then the next sweep removes the rest.
    """
    shutil.rmtree(directory / "data", ignore_errors=True)
    if not (directory / "data").exists():
        shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    try:
        with (directory / _OWNER).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # it has an owner, or belongs to another user
    return True
