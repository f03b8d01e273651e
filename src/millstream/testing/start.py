"""``with millstream.testing.broker() as kafka:``: a fresh broker that leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from millstream.testing.kafka import Kafka, ProcessKafka, ThreadKafka

# Settings that avoid delays, and files that no test needs.
QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.segment.delete.delay.ms": 0,
}
MEMORY = "/dev/shm"
_PREFIX, _UNOWNED, _OWNER = "millstream-test-", ".new", ".owner"


@contextmanager
def fresh_directory(directory: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield the given directory, or a temporary one, in memory if the system supports it."""
    if directory is not None:
        yield Path(directory)
        return
    base = Path(MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir())
    _sweep_once(base)
    with _own_directory(base) as temporary:
        yield temporary / "data"


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
        _remove(directory)


@cache
def _sweep_once(base: Path) -> None:
    """Remove directories whose owner was killed; they may occupy memory."""
    for left in base.glob(f"{_PREFIX}*"):
        if not left.name.endswith(_UNOWNED) and _is_abandoned(left):
            _remove(left)


def _remove(directory: Path) -> None:
    """Remove a directory, its owner file last.

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


@contextmanager
def broker(
    settings: Mapping[str, object] | None = None,
    *,
    process: bool = False,
    directory: str | os.PathLike[str] | None = None,
) -> Iterator[Kafka]:
    """Start a broker on a free port, on a thread of this process or as a separate process.

    ``settings`` are Kafka's settings by name. Data is deleted at the end, unless ``directory`` is
    given.
    """
    with fresh_directory(directory) as data:
        kafka: Kafka
        all_settings = QUICK | dict(settings or {})
        if process:
            kafka = ProcessKafka(data, all_settings)
        else:
            from millstream.testing.thread_broker import ThreadBroker

            kafka = ThreadKafka(ThreadBroker({"log.dirs": data} | all_settings).start())
        try:
            yield kafka
        finally:
            kafka.close()
