"""Dead letters: records that a pipeline could not read, in a topic of their own, with the reason and where they come from.

The key, the value and the headers are those of the original record; headers that begin with ``dlq.`` say the rest. What of a
dead-letter topic was sent back already is the committed position of its redrive group (``client/dead_letters/redrive.py``).

Every reader of a topic that refuses a record writes its own letter, so one record can have several. ``DeadLetter.identity`` is
the same for all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.admin.offsets import Isolation, OffsetsAdmin
from millstream.client.consumer import Consumer
from millstream.client.consuming.positions import Position
from millstream.client.errors import UnknownTopic, unknown_topic
from millstream.client.record import Headers, Record
from millstream.core.types import TopicPartition

SUFFIX = ".dlq"
PREFIX = "dlq."
REASON = "dlq.reason"
TOPIC = "dlq.topic"
PARTITION = "dlq.partition"
OFFSET = "dlq.offset"
TIMESTAMP = "dlq.timestamp"
# The pipeline and the flow that refused the record. A query that only looks for bad records belongs to no flow.
PIPELINE = "dlq.pipeline"
FLOW = "dlq.flow"
# Where a row came from that was no record of a topic, or which target did not take it.
SOURCE = "dlq.source"
# How often a record was sent back. It stays on the record, so that one which always comes back can be seen.
REDRIVEN = "dlq.redriven"
# The place of the original of a record that was sent back to its partition: "TOPIC-PARTITION:OFFSET@MILLISECONDS". It stays on the
# record, so that the order of records with the same key is known however often they were sent back.
FIRST = "dlq.first"
# These headers of a record that was sent back stay on its next dead letter.
STAYING = (REDRIVEN, FIRST)


class Identity(NamedTuple):
    """The record that a letter is about. The timestamp tells it from a record of a topic that was deleted and created again."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None


class RefusedBy(NamedTuple):
    """Who refused a record; None where the letter does not say."""

    pipeline: str | None
    flow: str | None

    def __str__(self) -> str:
        return "/".join(name for name in self if name)


_FIRST = re.compile(rb"(.+)-([0-9]{1,10}):([0-9]{1,19})@(-?[0-9]{0,19})", re.DOTALL)


class DeadLetter(NamedTuple):
    """A record of a dead-letter topic; what its headers do not say is None, as for one that another tool wrote."""

    record: Record
    reason: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    pipeline: str | None
    redriven: int
    source: str | None = None
    flow: str | None = None
    first: Identity | None = None
    """The original of a record that was sent back before."""

    @property
    def identity(self) -> Identity | None:
        """The record that the letter is about; None where the letter does not say, as that of a row of a file."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return Identity(self.topic, self.partition, self.offset, self.timestamp_ms)

    @property
    def refused_by(self) -> RefusedBy:
        return RefusedBy(self.pipeline, self.flow)

    @property
    def headers(self) -> Headers:
        """The headers of the original record."""
        return tuple((name, value) for name, value in self.record.headers if not name.startswith(PREFIX))


def dead_letter(record: Record) -> DeadLetter:
    """What the headers say; the last of a name counts."""
    found = {name: value for name, value in record.headers if name.startswith(PREFIX)}
    return DeadLetter(
        record,
        _text(found.get(REASON)),
        _text(found.get(TOPIC)),
        _number(found.get(PARTITION)),
        _number(found.get(OFFSET)),
        _number(found.get(TIMESTAMP)),
        _text(found.get(PIPELINE)),
        _number(found.get(REDRIVEN)) or 0,
        _text(found.get(SOURCE)),
        _text(found.get(FLOW)),
        parse_first(found.get(FIRST)),
    )


def format_first(identity: Identity) -> bytes:
    """The value of the header ``dlq.first``."""
    topic, partition, offset, timestamp_ms = identity
    return f"{topic}-{partition}:{offset}@{'' if timestamp_ms is None else timestamp_ms}".encode()


def parse_first(value: bytes | None) -> Identity | None:
    """The place that the header ``dlq.first`` names; None where it names none."""
    found = _FIRST.fullmatch(value) if value is not None else None
    if found is None:
        return None
    topic, partition, offset, timestamp_ms = found.groups()
    return Identity(
        topic.decode(errors="replace"), int(partition), int(offset), _number(timestamp_ms or None)
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def dead_letter_topic(topic: str) -> str:
    """Where the dead letters of a topic go unless a pipeline says otherwise."""
    return topic + SUFFIX


def redrive_group(topic: str) -> str:
    """The group whose position says how much of a dead-letter topic was sent back."""
    return topic + ".redrive"


def redriven_topic(topic: str) -> str:
    """The compacted topic that remembers which records were sent back out of a dead-letter topic."""
    return topic + ".redriven"


def find(admin: Admin, name: str) -> str:
    """The dead-letter topic that a name means: of the topic called so, or the topic itself."""
    names = admin.topics.names()
    for one in (dead_letter_topic(name), name):
        if one in names:
            return one
    close = unknown_topic(name, [one for one in names if one.endswith(SUFFIX)])
    hint = close.hint if close.hint.startswith("did you mean") else "see `millstream dlq list`"
    raise UnknownTopic(f"there are no dead letters of {name!r}", hint=hint, code=close.code)


@dataclass(frozen=True)
class NotRedriven(Position):
    """Where the redrive group goes on; the first record where it has committed nothing, or what is gone by now."""

    committed: Mapping[TopicPartition, int] = field(default_factory=dict)

    def resolve(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        first = offsets.list(dict.fromkeys(partitions, "earliest"), isolation=isolation)
        return {one: max(first[one].offset, self.committed.get(one, 0)) for one in partitions}


def read(
    bootstrap: str,
    topic: str,
    committed: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    partitions: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Generator[DeadLetter, None, None]:
    """The dead letters from the positions given to the present end, read committed."""
    start = NotRedriven("earliest", committed=committed)
    with Consumer(
        bootstrap,
        topic,
        start=start,
        until_end=True,
        partitions=partitions,
        timeout_s=timeout_s,
        options=options,
    ) as consumer:
        for record in consumer:
            yield dead_letter(record)


class Summary(NamedTuple):
    """A dead-letter topic: how many there are, how many were not sent back, the newest, and who refused how many."""

    topic: str
    records: int
    left: int
    newest: DeadLetter | None
    refused_by: Mapping[RefusedBy, int] = MappingProxyType({})


def summaries(admin: Admin, *, pipeline: str | None = None, flow: str | None = None) -> list[Summary]:
    """All topics that are called like dead-letter topics. They are read, since offsets count markers of transactions too."""
    names = [name for name in admin.topics.names() if name.endswith(SUFFIX)]
    found = [summary(admin, name, pipeline=pipeline, flow=flow) for name in names]
    return [one for one in found if one.records or (pipeline is None and flow is None)]


def summary(admin: Admin, topic: str, *, pipeline: str | None = None, flow: str | None = None) -> Summary:
    """Count the letters of a topic, or those that a pipeline or a flow wrote."""
    committed = admin.groups.committed(redrive_group(topic))
    records = left = 0
    newest: DeadLetter | None = None
    refused_by: Counter[RefusedBy] = Counter()
    connection = admin.connection
    for one in read(
        connection.bootstrap, topic, {}, timeout_s=connection.timeout_s, options=connection.options
    ):
        if not matches(one, pipeline=pipeline, flow=flow):
            continue
        record = one.record
        records += 1
        left += record.offset >= committed.get(TopicPartition(topic, record.partition), 0)
        refused_by[one.refused_by] += 1
        if newest is None or record.timestamp_ms >= newest.record.timestamp_ms:
            newest = one
    return Summary(
        topic, records, left, newest, dict(sorted(refused_by.items(), key=lambda row: str(row[0])))
    )


def matches(
    one: DeadLetter, reason: str | None = None, *, pipeline: str | None = None, flow: str | None = None
) -> bool:
    """Whether the reason contains a text, whatever the case, and the pipeline and the flow are those named. None matches all."""
    if reason is not None and reason.lower() not in (one.reason or "").lower():
        return False
    return pipeline in (None, one.pipeline) and flow in (None, one.flow)
