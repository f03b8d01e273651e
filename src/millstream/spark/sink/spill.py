"""Files through which the first stage hands its record batches to the second one, where both run on the same machine.

Bytes that go through the JVM twice (out of one Python worker, through a shuffle, into another) cost more than encoding and sending them. With a
local master the shuffle therefore moves only where they are. The driver makes a directory for each attempt of a batch and removes it
afterwards; what a killed driver left is removed by the next one that opens a sink.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "millstream-sink-"
# Less than this is not worth a file.
SMALL_BYTES = 256 << 10


def is_local(session: SparkSession) -> bool:
    """All tasks run on this very machine; ``local-cluster`` has executors of its own, but only tests use it."""
    master = session.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def base_of(session: SparkSession) -> Path:
    """Where Spark, too, puts what it shuffles."""
    return Path(session.conf.get("spark.local.dir", None) or tempfile.gettempdir())


def make_directory(session: SparkSession) -> Path:
    """A directory for one attempt of a batch, which carries the number of this process in its name."""
    base = base_of(session)
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))


def remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def sweep(session: SparkSession) -> None:
    """Remove the directories of drivers that are no more."""
    for directory in base_of(session).glob(f"{PREFIX}*"):
        owner = directory.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            remove(directory)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class SpillWriter:
    """One task's file, made when it is first needed. Every attempt of a task has its own."""

    def __init__(self, directory: str) -> None:
        self.path = str(Path(directory) / uuid.uuid4().hex)
        self._file = -1
        self._end = 0

    def add(self, body: bytes | memoryview) -> int:
        """Where the bytes are, and they are there when this returns."""
        if self._file < 0:
            self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        start, left = self._end, memoryview(body)
        while left:
            written = os.write(self._file, left)
            left = left[written:]
        self._end += len(body)
        return start

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SpillReader:
    """Views of the files that one task gets its batches from."""

    def __init__(self) -> None:
        self._files: dict[str, memoryview] = {}

    def view(self, path: str, start: int, size: int) -> memoryview:
        found = self._files.get(path)
        if found is None or len(found) < start + size:
            with open(path, "rb") as file:
                found = self._files[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return found[start : start + size]
