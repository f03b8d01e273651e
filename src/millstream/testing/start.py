"""``with millstream.testing.broker() as kafka:``: a fresh broker, and nothing left of it afterwards."""

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

# Everything that makes a test wait for nothing, or makes files that no test looks at.
QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.segment.delete.delay.ms": 0,
}
MEMORY = "/dev/shm"
_PREFIX, _UNOWNED, _OWNER = "millstream-test-", ".new", ".owner"


@contextmanager
def fresh_directory(given: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The one that is given, which stays, or one in memory where the system has such, which goes."""
    if given is not None:
        yield Path(given)
        return
    base = Path(MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir())
    _sweep_once(base)
    with _own_directory(base) as made:
        yield made / "data"


@contextmanager
def _own_directory(base: Path) -> Iterator[Path]:
    """A new directory, with a file in it that is locked for as long as this process lives."""
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_UNOWNED, dir=base))
    lock = os.open(made / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = made.rename(made.with_name(made.name.removesuffix(_UNOWNED)))
        yield made
    finally:
        os.close(lock)
        _remove(made)


@cache
def _sweep_once(base: Path) -> None:
    """Directories whose owner is gone without having removed them, killed: nobody else would, and memory is dear."""
    for left in base.glob(f"{_PREFIX}*"):
        if not left.name.endswith(_UNOWNED) and _is_abandoned(left):
            _remove(left)


def _remove(directory: Path) -> None:
    """The owner's file goes last: a broker that is just being ended may write on, and then the next sweep finds the rest."""
    shutil.rmtree(directory / "data", ignore_errors=True)
    if not (directory / "data").exists():
        shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    try:
        with (directory / _OWNER).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # it has an owner, or is somebody else's
    return True


@contextmanager
def broker(
    settings: Mapping[str, object] | None = None,
    *,
    process: bool = False,
    directory: str | os.PathLike[str] | None = None,
) -> Iterator[Kafka]:
    """A broker on a free port, with Kafka's settings by name, on a thread of this process or as a process of its own.

    A directory that is given keeps the data; else it is gone at the end.
    """
    with fresh_directory(directory) as data:
        kafka: Kafka
        given = QUICK | dict(settings or {})
        if process:
            kafka = ProcessKafka(data, given)
        else:
            from millstream.testing.thread_broker import ThreadBroker

            kafka = ThreadKafka(ThreadBroker({"log.dirs": data} | given).start())
        try:
            yield kafka
        finally:
            kafka.close()
