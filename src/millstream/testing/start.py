"""``with millstream.testing.broker() as kafka:``: a fresh broker, and nothing left of it afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def fresh_directory(given: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The one that is given, which stays, or one in memory where the system has such, which goes."""
    if given is not None:
        yield Path(given)
        return
    base = MEMORY if os.access(MEMORY, os.W_OK) else None
    made = tempfile.mkdtemp(prefix="millstream-", dir=base)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


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
