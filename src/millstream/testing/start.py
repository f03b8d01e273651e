"""``with millstream.testing.broker() as kafka:``: a fresh broker that leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.broker.ephemeral import QUICK
from millstream.testing.kafka import Kafka, ProcessKafka, ThreadKafka


@contextmanager
def fresh_directory(directory: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield the given directory, or a temporary one, in memory if the system supports it."""
    if directory is not None:
        yield Path(directory)
        return
    # Imported here: it needs the file locks of POSIX.
    from millstream.broker.temporary_data import temporary_data

    with temporary_data() as data:
        yield data


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
