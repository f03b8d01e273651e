"""Dead letters: records that a pipeline could not process, with the reason and their origin.

They are stored in a topic with the suffix ``.dlq``. Key, value and headers are those of the
original record; headers that begin with ``dlq.`` hold the rest. The committed offset of the redrive
group shows how much of a dead-letter topic was sent back (``client/dead_letters/redrive.py``).

Every reader of a topic that rejects a record writes its own dead letter, so a record can have
several. ``DeadLetter.identity`` is the same for all of them.
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
# The pipeline and the flow that rejected the record. A query that only
# looks for bad records has no flow.
PIPELINE = "dlq.pipeline"
FLOW = "dlq.flow"
# The origin of a row that was not a record of a topic, or the target that did not accept it.
SOURCE = "dlq.source"
# How often a record was sent back. It stays on the record, to show records that fail repeatedly.
REDRIVEN = "dlq.redriven"
# The position of the original of a record that was sent back to its partition, as
# "TOPIC-PARTITION:OFFSET@MILLISECONDS". It stays on the record, so that the order of records with
# the same key is known however often they were sent back.
FIRST = "dlq.first"
# These headers of a record that was sent back stay on its next dead letter.
STAYING = (REDRIVEN, FIRST)


class Identity(NamedTuple):
    """The record that a dead letter is about.

    The timestamp distinguishes it from a record of a topic that was deleted and created again.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None


class RefusedBy(NamedTuple):
    """The pipeline and flow that rejected a record; None if the dead letter has no such header."""

    pipeline: str | None
    flow: str | None

    def __str__(self) -> str:
        return "/".join(name for name in self if name)


_FIRST = re.compile(rb"(.+)-([0-9]{1,10}):([0-9]{1,19})@(-?[0-9]{0,19})", re.DOTALL)


class DeadLetter(NamedTuple):
    """A record of a dead-letter topic. Fields without a header, as from other tools, are None."""

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
        """The record that the letter is about; None if unknown, as for a row of a file."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return Identity(self.topic, self.partition, self.offset, self.timestamp_ms)

    @property
    def refused_by(self) -> RefusedBy:
        return RefusedBy(self.pipeline, self.flow)

    @property
    def headers(self) -> Headers:
        """The headers of the original record."""
        return tuple(
            (name, value) for name, value in self.record.headers if not name.startswith(PREFIX)
        )


def dead_letter(record: Record) -> DeadLetter:
    """Parse the headers of a record. The last of several with the same name counts."""
    headers = {name: value for name, value in record.headers if name.startswith(PREFIX)}
    return DeadLetter(
        record,
        _text(headers.get(REASON)),
        _text(headers.get(TOPIC)),
        _number(headers.get(PARTITION)),
        _number(headers.get(OFFSET)),
        _number(headers.get(TIMESTAMP)),
        _text(headers.get(PIPELINE)),
        _number(headers.get(REDRIVEN)) or 0,
        _text(headers.get(SOURCE)),
        _text(headers.get(FLOW)),
        parse_first(headers.get(FIRST)),
    )


def format_first(identity: Identity) -> bytes:
    """Return the value of the header ``dlq.first``."""
    topic, partition, offset, timestamp_ms = identity
    return f"{topic}-{partition}:{offset}@{'' if timestamp_ms is None else timestamp_ms}".encode()


def parse_first(value: bytes | None) -> Identity | None:
    """Return the position in the header ``dlq.first``, or None if it is malformed."""
    match = _FIRST.fullmatch(value) if value is not None else None
    if match is None:
        return None
    topic, partition, offset, timestamp_ms = match.groups()
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
    """Return the default topic for the dead letters of a topic."""
    return topic + SUFFIX


def redrive_group(topic: str) -> str:
    """Return the group whose offset shows how much of a dead-letter topic was sent back."""
    return topic + ".redrive"


def redriven_topic(topic: str) -> str:
    """Return the compacted topic of the records sent back out of a dead-letter topic."""
    return topic + ".redriven"


def find(admin: Admin, name: str) -> str:
    """Return the dead-letter topic of the topic with this name, or the topic itself."""
    names = admin.topics.names()
    for candidate in (dead_letter_topic(name), name):
        if candidate in names:
            return candidate
    close = unknown_topic(name, [topic for topic in names if topic.endswith(SUFFIX)])
    hint = close.hint if close.hint.startswith("did you mean") else "see `millstream dlq list`"
    raise UnknownTopic(f"topic {name!r} has no dead letters", hint=hint, code=close.code)


@dataclass(frozen=True)
class NotRedriven(Position):
    """The redrive group's position, or the first record if none is committed or it was deleted."""

    committed: Mapping[TopicPartition, int] = field(default_factory=dict)

    def resolve(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        first = offsets.list(dict.fromkeys(partitions, "earliest"), isolation=isolation)
        return {
            partition: max(first[partition].offset, self.committed.get(partition, 0))
            for partition in partitions
        }


def read(
    bootstrap: str,
    topic: str,
    committed: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    partitions: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Generator[DeadLetter, None, None]:
    """Yield the dead letters from the committed positions to the current end, read committed."""
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
    """A dead-letter topic: its letters, those not sent back yet, the newest, and counts by
    pipeline.
    """

    topic: str
    records: int
    left: int
    newest: DeadLetter | None
    refused_by: Mapping[RefusedBy, int] = MappingProxyType({})


def summaries(
    admin: Admin, *, pipeline: str | None = None, flow: str | None = None
) -> list[Summary]:
    """Return a summary of every topic that is named like a dead-letter topic.

    The topics are read, because offsets also count transaction markers.
    """
    names = [name for name in admin.topics.names() if name.endswith(SUFFIX)]
    rows = [summary(admin, name, pipeline=pipeline, flow=flow) for name in names]
    return [row for row in rows if row.records or (pipeline is None and flow is None)]


def summary(
    admin: Admin, topic: str, *, pipeline: str | None = None, flow: str | None = None
) -> Summary:
    """Count the letters of a topic, or those that a pipeline or a flow wrote."""
    committed = admin.groups.committed(redrive_group(topic))
    records = left = 0
    newest: DeadLetter | None = None
    refused_by: Counter[RefusedBy] = Counter()
    connection = admin.connection
    for letter in read(
        connection.bootstrap, topic, {}, timeout_s=connection.timeout_s, options=connection.options
    ):
        if not matches(letter, pipeline=pipeline, flow=flow):
            continue
        record = letter.record
        records += 1
        left += record.offset >= committed.get(TopicPartition(topic, record.partition), 0)
        refused_by[letter.refused_by] += 1
        if newest is None or record.timestamp_ms >= newest.record.timestamp_ms:
            newest = letter
    return Summary(
        topic, records, left, newest, dict(sorted(refused_by.items(), key=lambda row: str(row[0])))
    )


def matches(
    letter: DeadLetter,
    reason: str | None = None,
    *,
    pipeline: str | None = None,
    flow: str | None = None,
) -> bool:
    """Return whether the reason contains a text, ignoring case, and pipeline and flow are equal.

    None matches everything.
    """
    if reason is not None and reason.lower() not in (letter.reason or "").lower():
        return False
    return pipeline in (None, letter.pipeline) and flow in (None, letter.flow)
