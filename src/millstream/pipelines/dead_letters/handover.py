"""Where a query of dead letters begins after the flow that wrote them: where that flow ended.

The flow was removed from the pipeline, or does not read the stream any more.

The last batch that counts is the later one of Spark's commit log and of the progress that the flow's sink committed with
the dead letters: a crash may come between the two. A flow that writes topics commits them with its topics, any other
flow in a sink for dead letters.
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
    """The next offset of each partition of a topic that a flow would have read; None if it never finished a batch.

    ``topics`` and ``letters`` are what the flow's sinks have committed. The sink for dead letters does not count for a flow
    that may have been killed in its first batch: it could write topics, and its dead letters would be lost.
    """
    query = _query_id(checkpoint)
    done = _last(checkpoint / "commits")
    if topics is not None and topics.query == query:
        done = topics.batch if done is None else max(done, topics.batch)
    elif letters is not None and letters.query == query and done is not None:
        done = max(done, letters.batch)
    if done is None:
        return None
    found: dict[int, int] = {}
    for offset in _sources(checkpoint / "offsets" / str(done)):
        for partition, number in offset.positions.items():
            if partition.topic == topic:
                known = found.get(partition.partition, number)
                found[partition.partition] = min(known, number)
    return found or None


def _last(directory: Path) -> int | None:
    numbers = [int(one.name) for one in directory.glob("*") if one.name.isdigit()]
    return max(numbers, default=None)


def _query_id(checkpoint: Path) -> str | None:
    try:
        found = json.loads((checkpoint / "metadata").read_text())
    except (OSError, ValueError):
        return None
    return found.get("id") if isinstance(found, dict) else None


def _sources(file: Path) -> Iterator[Offset]:
    """The offsets of the sources of a batch that are topics."""
    try:
        _version, _settings, *sources = file.read_text().splitlines()
    except (OSError, ValueError):
        return
    for source in sources:
        try:
            yield Offset.parse(source)
        except (ValueError, AttributeError, TypeError):
            continue  # a source of another kind
