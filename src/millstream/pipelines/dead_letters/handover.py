"""Finds where a flow ended, so that a query for its dead letters can start there.

The flow was removed from the pipeline, or no longer reads the stream.

The last batch is the later one of Spark's commit log and of the progress that the flow's sink
committed with the dead letters, because a crash may come between the two. A flow that writes topics
commits dead letters together with its topics, any other flow in a separate sink.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from millstream.spark.sink.progress import Progress
from millstream.spark.source.offsets import Offset


def ended_at(
    checkpoint: Path, topics: Progress | None, letters: Progress | None, topic: str
) -> dict[int, int] | None:
    """Return the next offset of each partition of a topic, or None if no batch was finished.

    ``topics`` and ``letters`` are the committed progress of the flow's sinks. The sink for dead
    letters does not count for a flow that may have been killed in its first batch: the flow could
    write topics, and its dead letters would be lost.
    """
    query = _query_id(checkpoint)
    done = _last(checkpoint / "commits")
    if topics is not None and topics.query == query:
        done = topics.batch if done is None else max(done, topics.batch)
    elif letters is not None and letters.query == query and done is not None:
        done = max(done, letters.batch)
    if done is None:
        return None
    offsets: dict[int, int] = {}
    for offset in _sources(checkpoint / "offsets" / str(done)):
        for partition, number in offset.positions.items():
            if partition.topic == topic:
                known = offsets.get(partition.partition, number)
                offsets[partition.partition] = min(known, number)
    return offsets or None


def _last(directory: Path) -> int | None:
    numbers = [int(path.name) for path in directory.glob("*") if path.name.isdigit()]
    return max(numbers, default=None)


def _query_id(checkpoint: Path) -> str | None:
    try:
        metadata = json.loads((checkpoint / "metadata").read_text())
    except (OSError, ValueError):
        return None
    return metadata.get("id") if isinstance(metadata, dict) else None


def _sources(file: Path) -> Iterator[Offset]:
    """Yield the offsets of those sources of a batch that are topics."""
    try:
        _version, _settings, *sources = file.read_text().splitlines()
    except (OSError, ValueError):
        return
    for source in sources:
        try:
            yield Offset.parse(source)
        except (ValueError, AttributeError, TypeError):
            # This source is not a topic.
            continue
