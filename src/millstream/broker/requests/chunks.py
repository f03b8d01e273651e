"""Requests with many partitions, split into chunks.

A coordinator's shard decides a chunk in a few milliseconds, and other requests in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from millstream.wire.schema import Struct

T = TypeVar("T", bound=Struct)

# Maximum number of partitions or members in a chunk.
MAX_PER_CHUNK = 1000


class Chunk(NamedTuple):
    """Some topics of a request.

    ``continues``: the first topic is the rest of the last topic of the previous chunk.
    """

    topics: list[Any]
    continues: bool


def is_large(topics: Sequence[Any], partitions: str) -> bool:
    """Return whether a request has to be split; ``partitions`` names the field of a topic."""
    if len(topics) > MAX_PER_CHUNK:
        return True
    return sum(len(getattr(topic, partitions)) for topic in topics) > MAX_PER_CHUNK


def chunks(topics: Sequence[Struct], partitions: str) -> Iterator[Chunk]:
    """Yield all topics and partitions in order; ``partitions`` names the field of a topic."""
    chunk: list[Struct] = []
    room, continues = MAX_PER_CHUNK, False
    for topic in topics:
        rows = getattr(topic, partitions)
        start = 0
        while True:
            taken = rows[start : start + room]
            chunk.append(_with(topic, partitions, taken))
            start += len(taken)
            room -= max(len(taken), 1)
            if room <= 0:
                yield Chunk(chunk, continues)
                chunk, room, continues = [], MAX_PER_CHUNK, start < len(rows)
            if start >= len(rows):
                break
    if chunk:
        yield Chunk(chunk, continues)


def add_response(topics: list[T], more: Sequence[T], continues: bool) -> None:
    """Add the response to a chunk; the rest of a topic is merged with its beginning."""
    if continues and topics and more:
        topics[-1].partitions += more[0].partitions  # type: ignore[attr-defined]
        more = more[1:]
    topics += more


def _with(topic: Struct, partitions: str, rows: list[Any]) -> Struct:
    values = {field.name: getattr(topic, field.name) for field in topic.fields}
    return type(topic)(**(values | {partitions: rows}))
