"""Requests about many partitions, in chunks that a coordinator's shard decides in a few milliseconds each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from millstream.wire.schema import Struct

T = TypeVar("T", bound=Struct)

# A shard decides about this many partitions or members in one go, in a few milliseconds.
MOST_AT_ONCE = 1000


class Chunk(NamedTuple):
    """Some topics of a request; ``continues``: the first one is the rest of the last one of the chunk before."""

    topics: list[Any]
    continues: bool


def is_large(topics: Sequence[Any], partitions: str) -> bool:
    """Whether a request has to be decided in chunks."""
    return len(topics) > MOST_AT_ONCE or sum(len(getattr(one, partitions)) for one in topics) > MOST_AT_ONCE


def chunks(topics: Sequence[Struct], partitions: str) -> Iterator[Chunk]:
    """The topics with all their partitions, in order; ``partitions`` names the field that has those of a topic."""
    found: list[Struct] = []
    room, continues = MOST_AT_ONCE, False
    for topic in topics:
        rows = getattr(topic, partitions)
        start = 0
        while True:
            some = rows[start : start + room]
            found.append(_with(topic, partitions, some))
            start += len(some)
            room -= max(len(some), 1)
            if room <= 0:
                yield Chunk(found, continues)
                found, room, continues = [], MOST_AT_ONCE, start < len(rows)
            if start >= len(rows):
                break
    if found:
        yield Chunk(found, continues)


def add_answer(answers: list[T], more: Sequence[T], continues: bool) -> None:
    """Add the answer to a chunk; the rest of a topic goes to its beginning."""
    if continues and answers and more:
        answers[-1].partitions += more[0].partitions  # type: ignore[attr-defined]
        more = more[1:]
    answers += more


def _with(topic: Struct, partitions: str, rows: list[Any]) -> Struct:
    values = {field.name: getattr(topic, field.name) for field in topic.fields}
    return type(topic)(**(values | {partitions: rows}))
