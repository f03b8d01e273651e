"""Read single records of a topic by their offsets, on the driver.

A few records are fetched faster this way than by a Spark job, which starts a Python process to plan
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.core.types import TopicPartition
from millstream.spark.options import BATCH, parse
from millstream.spark.source.cluster_view import ClusterView
from millstream.spark.source.fetcher import Fetcher
from millstream.spark.source.offsets import Range
from millstream.spark.source.planning import all_columns, check_columns, make_task

# Offsets this close to each other are read as one range: a fetch returns whole batches anyway.
CLOSE = 500


class StoredRecord(NamedTuple):
    """A record as it is in its topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records_at(
    options: Mapping[str, str], offsets: Mapping[TopicPartition, Iterable[int]]
) -> Iterator[StoredRecord]:
    """Yield the records at these offsets, in order. Deleted records are left out.

    ``options`` are those of a source: the connection and the isolation level.
    """
    assign: dict[str, list[int]] = {}
    for partition in sorted(offsets):
        assign.setdefault(partition.topic, []).append(partition.partition)
    parsed = parse({**options, "assign": json.dumps(assign)}, BATCH)
    columns = check_columns(all_columns())
    view = ClusterView(parsed)
    try:
        view.refresh()
        logs = view.logs()
        for partition, numbers in sorted(offsets.items()):
            chosen = set(numbers)
            for span in spans(partition, sorted(chosen)):
                start = max(span.start, logs[partition].earliest)
                if start >= span.end:
                    continue
                piece = Range(partition, start, span.end)
                task = replace(make_task(view, parsed, piece, columns), fail_on_data_loss=False)
                # Separate connections, because the batches of several flows are written at the same
                # time.
                for batch in Fetcher(task, view.protocol).batches():
                    yield from _records(batch, chosen)
    finally:
        view.close()


def spans(partition: TopicPartition, offsets: Sequence[int]) -> Iterator[Range]:
    """Yield few ranges that cover these ascending offsets."""
    first = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] - offsets[at - 1] > CLOSE:
            yield Range(partition, offsets[first], offsets[at - 1] + 1)
            first = at


def _records(batch: pa.RecordBatch, chosen: set[int]) -> Iterator[StoredRecord]:
    at = [row for row, offset in enumerate(batch.column("offset").to_pylist()) if offset in chosen]
    picked = batch.take(pa.array(at, pa.int64()))
    times = picked.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    rows: list[dict[str, Any]] = picked.to_pylist()
    for row, timestamp_ms in zip(rows, times.to_pylist(), strict=True):
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        yield StoredRecord(
            row["topic"],
            row["partition"],
            row["offset"],
            timestamp_ms,
            row["key"],
            row["value"],
            headers,
        )
