"""Offsets of a query as Spark stores them, and decisions about them. No I/O.

An offset is ``{"orders": {"0": 23, "1": 42}, "@ids": {"orders": "<topic id>"}}``: the next offset
to read of every partition, as in Spark's Kafka connector, and the id of each topic. By its id, a
topic that was deleted and created again is recognised as a different one. No topic can be called
``@ids``. Topics and partitions are always in the same order, because Spark compares offsets as
text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

from millstream.core.types import TopicPartition

IDS = "@ids"
EARLIEST, LATEST = -2, -1

Positions = dict[TopicPartition, int]


@dataclass(frozen=True)
class Offset:
    """How far a query has read: the next offset of each partition, and known topic ids."""

    positions: Positions
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, offset: Mapping[str, Any] | str) -> Offset:
        """Parse the dictionary or JSON that Spark stores (``progress.sources[0].endOffset``)."""
        stored = json.loads(offset) if isinstance(offset, str) else offset
        positions = {
            TopicPartition(topic, int(partition)): int(number)
            for topic, numbers in stored.items()
            if topic != IDS
            for partition, number in numbers.items()
        }
        return cls(positions, dict(stored.get(IDS) or {}))

    def render(self) -> dict[str, Any]:
        """Return the dictionary for Spark, always in the same order."""
        out: dict[str, Any] = {}
        for partition in sorted(self.positions):
            out.setdefault(partition.topic, {})[str(partition.partition)] = self.positions[
                partition
            ]
        ids = {topic: self.ids[topic] for topic in out if self.ids.get(topic)}
        return out | {IDS: ids} if ids else out


class Range(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of a partition.

    Not every offset need have a record.
    """

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Loss(NamedTuple):
    """Offsets to read that are lost.

    ``resume`` is where reading can continue; None if the partition is gone.
    """

    partition: TopicPartition
    kind: str
    """A key of ``_MESSAGES``."""
    position: int
    resume: int | None

    def __str__(self) -> str:
        return _MESSAGES[self.kind].format(
            partition=self.partition,
            topic=self.partition.topic,
            position=self.position,
            resume=self.resume,
            last=(self.resume or 0) - 1,
            before=self.position - 1,
            count=abs((self.resume or 0) - self.position),
        )


_MESSAGES = {
    "deleted": "{partition}: offsets {position} to {last} ({count} offsets) were deleted (by retention or "
    "DeleteRecords) before they were read; the log now begins at {resume}",
    "shrunk": "{partition}: the log now ends at {resume}, before {position}, where this query has read to: "
    "the brokers lost offsets {resume} to {before} ({count} offsets), and new records will reuse them",
    "beyond": "{partition}: the read was to end at {position}, but the log ends at {resume}",
    "ahead": "{partition}: the read was to begin at {position}, but the log ends at {resume}",
    "recreated": "{partition}: topic {topic} was deleted and created again: the position {position} "
    "belonged to the old topic, whose unread records are lost; the new one begins at {resume}",
    "gone": "{partition}: does not exist any more (topic {topic} was deleted): this query had read to "
    "{position}, and the records after it are lost",
}


class LogState(NamedTuple):
    """The first offset of a log, and its readable end."""

    earliest: int
    latest: int


def find_losses(
    offset: Offset, logs: Mapping[TopicPartition, LogState], ids: Mapping[str, str]
) -> list[Loss]:
    """Return the lost offsets of a position, by partition."""
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
    """Return where the next micro-batch ends.

    A new partition, or one that starts over after a loss, first enters with the position where it
    begins. The batch after that reads it. So its beginning is in the checkpoint, and a repeated
    batch reads the same records.
    """
    lost = {loss.partition: loss for loss in losses}
    ranges, entering = [], {}
    for partition, log in logs.items():
        loss = lost.get(partition)
        if partition not in start.positions:
            entering[partition] = log.earliest
        elif loss is not None and loss.kind != "deleted" and loss.resume is not None:
            entering[partition] = loss.resume
        else:
            position = (
                loss.resume
                if loss is not None and loss.resume is not None
                else start.positions[partition]
            )
            ranges.append(Range(partition, position, max(position, log.latest)))
    positions = limit(ranges, max_offsets) | entering
    return Offset(positions, {topic: ids[topic] for topic in _topics(positions) if ids.get(topic)})


def _topics(positions: Iterable[TopicPartition]) -> set[str]:
    return {partition.topic for partition in positions}


def limit(ranges: Sequence[Range], max_offsets: int | None) -> Positions:
    """Return the ends of these ranges, truncated to at most ``max_offsets`` offsets in all.

    Each range gets a share in proportion to its size. No range gets nothing while others get more
    than one offset: beside a large backlog, a partition with few records would wait for its end.
    """
    total = sum(span.size for span in ranges)
    if max_offsets is None or total <= max_offsets:
        return {span.partition: span.end for span in ranges}
    shares = sorted(
        ranges, key=lambda span: (span.size * max_offsets % total, span.partition), reverse=True
    )
    taken = {span.partition: span.size * max_offsets // total for span in shares}
    # The offsets that rounding left over.
    for span in shares[: max_offsets - sum(taken.values())]:
        taken[span.partition] += 1
    richest = [(-count, partition) for partition, count in taken.items() if count > 1]
    heapify(richest)
    for span in ranges:
        if richest and span.size and not taken[span.partition]:
            count, partition = -richest[0][0] - 1, richest[0][1]
            taken[span.partition], taken[partition] = 1, count
            if count > 1:
                heapreplace(richest, (-count, partition))
            else:
                heappop(richest)
    return {span.partition: span.start + taken[span.partition] for span in ranges}


def pending_offsets(start: Offset, logs: Mapping[TopicPartition, LogState]) -> int:
    """Return the number of offsets between a position and the ends of the logs."""
    return sum(
        max(0, log.latest - start.positions.get(partition, log.earliest))
        for partition, log in logs.items()
    )


def ranges_between(start: Offset, end: Offset) -> list[Range]:
    """Return the ranges that a micro-batch reads.

    Partitions that enter or start over with it are read by the next one.
    """
    ranges = []
    for partition, stop in sorted(end.positions.items()):
        position = start.positions.get(partition)
        same = not _differ(start.ids.get(partition.topic), end.ids.get(partition.topic))
        if position is not None and same and position < stop:
            ranges.append(Range(partition, position, stop))
    return ranges
