"""Offsets of a query as Spark keeps them, and what follows from them: ranges to read, limits, splitting, data loss. Pure.

An offset is ``{"orders": {"0": 23, "1": 42}, "@ids": {"orders": "<topic id>"}}``: the next offset to read of every partition as
in Spark's Kafka connector, and the id of each topic, by which a topic that was deleted and created again is known for a
different one. No topic can be called ``@ids``. Topics and partitions are always in the same order, because Spark compares
offsets as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Any, NamedTuple

from millstream.core.types import TopicPartition

IDS = "@ids"
EARLIEST, LATEST = -2, -1

Positions = dict[TopicPartition, int]


@dataclass(frozen=True)
class Offset:
    """How far a query has read: the next offset of each partition, and the ids of the topics where brokers tell them."""

    positions: Positions
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, offset: Mapping[str, Any] | str) -> Offset:
        """From the dictionary or JSON text that Spark keeps (``progress.sources[0].endOffset``)."""
        found = json.loads(offset) if isinstance(offset, str) else offset
        positions = {
            TopicPartition(topic, int(partition)): int(number)
            for topic, numbers in found.items()
            if topic != IDS
            for partition, number in numbers.items()
        }
        return cls(positions, dict(found.get(IDS) or {}))

    def render(self) -> dict[str, Any]:
        """The dictionary for Spark, always in the same order."""
        out: dict[str, Any] = {}
        for partition in sorted(self.positions):
            out.setdefault(partition.topic, {})[str(partition.partition)] = self.positions[partition]
        ids = {topic: self.ids[topic] for topic in out if self.ids.get(topic)}
        return out | {IDS: ids} if ids else out


class Range(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of a partition. Not every offset need have a record."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Loss(NamedTuple):
    """Offsets that were to be read and are gone. ``resume`` is where reading can go on; None: nowhere, the partition is gone."""

    partition: TopicPartition
    kind: str  # a key of _STORIES
    position: int
    resume: int | None

    def __str__(self) -> str:
        return _STORIES[self.kind].format(
            partition=self.partition,
            topic=self.partition.topic,
            position=self.position,
            resume=self.resume,
            last=(self.resume or 0) - 1,
            before=self.position - 1,
            count=abs((self.resume or 0) - self.position),
        )


_STORIES = {
    "deleted": "{partition}: offsets {position} to {last} ({count} offsets) were deleted (by retention or DeleteRecords) before they were read; the log now begins at {resume}",
    "shrunk": "{partition}: the log now ends at {resume}, before {position}, where this query has read to: offsets {resume} to {before} ({count} offsets) were lost by the brokers, and new records will take these offsets again",
    "beyond": "{partition}: the read was to end at {position}, but the log ends at {resume}",
    "ahead": "{partition}: the read was to begin at {position}, but the log ends at {resume}",
    "recreated": "{partition}: topic {topic} was deleted and created again: the position {position} belonged to the old topic, whose unread records are gone; the new one begins at {resume}",
    "gone": "{partition}: does not exist any more (topic {topic} was deleted): this query had read to {position}, and what followed is gone",
}


class LogState(NamedTuple):
    """What the brokers say of a partition now."""

    earliest: int
    latest: int


def find_losses(
    offset: Offset, logs: Mapping[TopicPartition, LogState], ids: Mapping[str, str]
) -> list[Loss]:
    """What of a position cannot be read any more, by partition."""
    losses = []
    for partition, position in sorted(offset.positions.items()):
        log = logs.get(partition)
        if log is None:
            losses.append(Loss(partition, "gone", position, None))
        elif _differ(offset.ids.get(partition.topic), ids.get(partition.topic)):
            losses.append(Loss(partition, "recreated", position, log.earliest))
        elif position < log.earliest:
            losses.append(Loss(partition, "deleted", position, log.earliest))
        elif position > log.latest:
            losses.append(Loss(partition, "shrunk", position, log.latest))
    return losses


def _differ(then: str | None, now: str | None) -> bool:
    return bool(then and now and then != now)


def next_offset(
    start: Offset,
    logs: Mapping[TopicPartition, LogState],
    ids: Mapping[str, str],
    losses: Iterable[Loss],
    *,
    max_offsets: int | None = None,
) -> Offset:
    """Where the next micro-batch ends.

    A partition that is new, or whose log begins anew after a loss, first enters with the position where it begins and is read by
    the batch after: so the beginning stands in the checkpoint, and a batch that is repeated reads the same again.
    """
    lost = {loss.partition: loss for loss in losses}
    ranges, begun = [], {}
    for partition, log in logs.items():
        loss = lost.get(partition)
        if partition not in start.positions:
            begun[partition] = log.earliest
        elif loss is not None and loss.kind != "deleted" and loss.resume is not None:
            begun[partition] = loss.resume
        else:
            position = (
                loss.resume if loss is not None and loss.resume is not None else start.positions[partition]
            )
            ranges.append(Range(partition, position, max(position, log.latest)))
    positions = limit(ranges, max_offsets) | begun
    return Offset(positions, {topic: ids[topic] for topic in _topics(positions) if ids.get(topic)})


def _topics(positions: Iterable[TopicPartition]) -> set[str]:
    return {partition.topic for partition in positions}


def limit(ranges: Sequence[Range], max_offsets: int | None) -> Positions:
    """The ends of these ranges, cut so that all together have at most ``max_offsets``, each in proportion to its size, but none
    nothing as long as others have more than one: beside a large backlog a partition with few records would wait for its end."""
    total = sum(one.size for one in ranges)
    if max_offsets is None or total <= max_offsets:
        return {one.partition: one.end for one in ranges}
    shares = sorted(ranges, key=lambda one: (one.size * max_offsets % total, one.partition), reverse=True)
    taken = {one.partition: one.size * max_offsets // total for one in shares}
    for one in shares[: max_offsets - sum(taken.values())]:  # what rounding left over
        taken[one.partition] += 1
    richest = [(-count, partition) for partition, count in taken.items() if count > 1]
    heapify(richest)
    for one in ranges:
        if richest and one.size and not taken[one.partition]:
            count, partition = -richest[0][0] - 1, richest[0][1]
            taken[one.partition], taken[partition] = 1, count
            if count > 1:
                heapreplace(richest, (-count, partition))
            else:
                heappop(richest)
    return {one.partition: one.start + taken[one.partition] for one in ranges}


def waiting(start: Offset, logs: Mapping[TopicPartition, LogState]) -> int:
    """Offsets between a position and the ends of the logs."""
    return sum(
        max(0, log.latest - start.positions.get(partition, log.earliest)) for partition, log in logs.items()
    )


def ranges_between(start: Offset, end: Offset) -> list[Range]:
    """What a micro-batch reads. Partitions that only begin with it, or begin anew, are read from the next one on."""
    ranges = []
    for partition, stop in sorted(end.positions.items()):
        position = start.positions.get(partition)
        same = not _differ(start.ids.get(partition.topic), end.ids.get(partition.topic))
        if position is not None and same and position < stop:
            ranges.append(Range(partition, position, stop))
    return ranges


def split(ranges: Sequence[Range], min_partitions: int | None, max_records: int | None = None) -> list[Range]:
    """Cut large ranges into pieces of about the same size, until there are at least ``min_partitions`` (if sizes allow)."""
    pieces = [
        piece
        for one in ranges
        if one.size > 0
        for piece in _cut(one, -(-one.size // (max_records or one.size)))
    ]
    total = sum(one.size for one in pieces)
    if not min_partitions or len(pieces) >= min_partitions or not total:
        return pieces
    counts = _counts(pieces, min(min_partitions, total), total)
    return [piece for one, count in zip(pieces, counts, strict=True) for piece in _cut(one, count)]


def _counts(ranges: Sequence[Range], wanted: int, total: int) -> list[int]:
    """How many pieces each range is cut into: by size, none without one, and all together at least what is wanted."""
    counts = [min(one.size, max(1, one.size * wanted // total)) for one in ranges]
    while sum(counts) < wanted:
        widest = max(range(len(counts)), key=lambda at: ranges[at].size / counts[at])
        counts[widest] += 1
    return counts


def _cut(one: Range, count: int) -> list[Range]:
    edges = [one.start + one.size * step // count for step in range(count + 1)]
    return [Range(one.partition, low, high) for low, high in pairwise(edges)]
