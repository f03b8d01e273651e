"""Two clusters of one broker each, and a mirror between them, for the tests of mirroring."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.errors import UnknownTopic
from millstream.client.record import Record
from millstream.connect.mirror.declare import mirror
from millstream.connect.mirror.policy import HEADER
from millstream.core.types import TopicPartition
from millstream.pipelines import Pipeline
from millstream.pipelines.runner import Run, RunOptions

PATIENCE_S = 240.0


def run_once(spark: Any, a: str, b: str, checkpoint: Path, **given: Any) -> list[dict[str, Any]]:
    """Mirror what is there between the clusters ``a`` and ``b``; the events."""
    pipeline = Pipeline(checkpoint.name, bootstrap=a, retries=0)
    mirror(pipeline, f"a={a}", f"b={b}", **given)
    events: list[dict[str, Any]] = []
    Run(pipeline, spark, RunOptions(once=True, checkpoint=str(checkpoint)), events.append).run()
    return events


class Mirrored:
    """A mirror that runs, in a thread of its own, until the block ends."""

    def __init__(self, spark: Any, a: str, b: str, checkpoint: Path, **given: Any) -> None:
        pipeline = Pipeline(checkpoint.name, bootstrap=a, retries=0)
        mirror(pipeline, f"a={a}", f"b={b}", interval="200 ms", **given)
        self.events: list[dict[str, Any]] = []
        self._run = Run(pipeline, spark, RunOptions(checkpoint=str(checkpoint)), self.events.append)
        self._thread = threading.Thread(target=self._run.run)

    def __enter__(self) -> Mirrored:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the mirror does not stop"
        assert not failures(self.events)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """A topic that is not there yet is no answer."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(UnknownTopic):
                if condition():
                    return
            assert time.monotonic() < deadline_s and not failures(self.events), (
                f"{what}: {self.events}"
            )
            time.sleep(0.1)


def failures(events: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(one["reason"]) for one in events if one.get("state") == "failed"]


def read(bootstrap: str, topic: str) -> list[Record]:
    """The committed records, by partition and offset."""
    with Consumer(bootstrap, topic, until_end=True) as consumer:
        return sorted(consumer, key=lambda one: (one.partition, one.offset))


def as_sent(record: Record) -> tuple[object, ...]:
    """All that a copy keeps: everything but offset, topic, and the mirror's own headers."""
    headers = tuple(one for one in record.headers if one[0] != HEADER)
    return record.partition, record.timestamp_ms, record.key, record.value, headers


def count(bootstrap: str, topic: str) -> int:
    return len(read(bootstrap, topic))


def read_on(bootstrap: str, topics: str | list[str], group: str) -> list[Record]:
    """What a group gets that goes on where it was."""
    with Consumer(bootstrap, topics, group=group, until_end=True) as consumer:
        return list(consumer)


def commit(bootstrap: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    with Admin(bootstrap) as admin:
        admin.groups.alter(group, offsets)


def committed(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    with Admin(bootstrap) as admin:
        return admin.groups.committed(group)
