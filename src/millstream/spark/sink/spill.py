"""Files by which the first stage passes its record batches to the second, on one machine.

Passing bytes through the JVM twice (out of one Python worker, through a shuffle, into another)
costs more than encoding and sending them. With a local master the shuffle therefore moves only
their locations. The driver creates a directory for each attempt of a batch and removes it
afterwards. The next driver that opens a sink removes the directories of a killed one.
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
# Smaller bodies are not worth a file.
SMALL_BYTES = 256 << 10


def is_local(session: SparkSession) -> bool:
    """Return whether all tasks run on this machine.

    ``local-cluster`` has separate executors and does not count; only tests use it.
    """
    master = session.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def base_of(session: SparkSession) -> Path:
    """Return the directory that Spark also uses for shuffle files."""
    return Path(session.conf.get("spark.local.dir", None) or tempfile.gettempdir())


def make_directory(session: SparkSession) -> Path:
    """Create a directory for one attempt of a batch, with this process id in its name."""
    base = base_of(session)
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))


def remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def sweep(session: SparkSession) -> None:
    """Remove the directories of drivers that no longer run."""
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
    """The file of one task attempt, created when it is first needed."""

    def __init__(self, directory: str) -> None:
        self.path = str(Path(directory) / uuid.uuid4().hex)
        self._file = -1
        self._end = 0

    def add(self, body: bytes | memoryview) -> int:
        """Write the bytes and return their position in the file."""
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
    """Views of the files from which one task gets its batches."""

    def __init__(self) -> None:
        self._files: dict[str, memoryview] = {}

    def view(self, path: str, start: int, size: int) -> memoryview:
        mapped = self._files.get(path)
        if mapped is None or len(mapped) < start + size:
            with open(path, "rb") as file:
                mapped = self._files[path] = memoryview(
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
        return mapped[start : start + size]
