"""Two clusters of one broker each, and a mirror between them, for the tests of mirroring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from millstream.client.admin import Admin
from millstream.client.consumer import Consumer
from millstream.client.record import Record
from millstream.connect.mirror import mirror
from millstream.connect.mirror_policy import HEADER
from millstream.core.types import TopicPartition
from millstream.pipelines import Pipeline
from millstream.pipelines.runner import Run, RunOptions


def run_once(spark: Any, a: str, b: str, checkpoint: Path, **given: Any) -> list[dict[str, Any]]:
    """Mirror what is there between the clusters ``a`` and ``b``; the events."""
    pipeline = Pipeline(checkpoint.name, bootstrap=a, retries=0)
    mirror(pipeline, f"a={a}", f"b={b}", **given)
    events: list[dict[str, Any]] = []
    Run(pipeline, spark, RunOptions(once=True, checkpoint=str(checkpoint)), events.append).run()
    return events


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


def read_on(bootstrap: str, topics: str | list[str], group: str) -> list[Record]:
    """What a group gets that goes on where it was."""
    with Consumer(bootstrap, topics, group=group, until_end=True, start="latest") as consumer:
        return list(consumer)


def commit(bootstrap: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    with Admin(bootstrap) as admin:
        admin.groups.alter(group, offsets)


def committed(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    with Admin(bootstrap) as admin:
        return admin.groups.committed(group)
