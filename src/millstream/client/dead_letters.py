"""Dead letters: records that a pipeline could not read, in a topic of their own, with the reason and where they come from.

The key, the value and the headers are those of the original record; headers that begin with ``dlq.`` say the rest. What of a
dead-letter topic was sent back already is the committed position of its redrive group (``client/redrive.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.client.admin import Admin
from millstream.client.consumer import Consumer
from millstream.client.errors import UnknownTopic, unknown_topic
from millstream.client.offsets import Isolation, OffsetsAdmin
from millstream.client.positions import Position
from millstream.client.record import Headers, Record
from millstream.core.types import TopicPartition

SUFFIX = ".dlq"
PREFIX = "dlq."
REASON = "dlq.reason"
TOPIC = "dlq.topic"
PARTITION = "dlq.partition"
OFFSET = "dlq.offset"
TIMESTAMP = "dlq.timestamp"
PIPELINE = "dlq.pipeline"
# Where a row came from that was no record of a topic, or which target did not take it.
SOURCE = "dlq.source"
# How often a record was sent back. It stays on the record, so that one which always comes back can be seen.
REDRIVEN = "dlq.redriven"


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
    bootstrap: str, topic: str, committed: Mapping[TopicPartition, int], *, timeout_s: float
) -> Iterator[DeadLetter]:
    """The dead letters from the positions given to the present end, read committed."""
    start = NotRedriven("earliest", committed=committed)
    with Consumer(bootstrap, topic, start=start, until_end=True, timeout_s=timeout_s) as consumer:
        for record in consumer:
            yield dead_letter(record)


class Summary(NamedTuple):
    """A dead-letter topic: how many there are, how many were not sent back, the newest."""

    topic: str
    records: int
    left: int
    newest: DeadLetter | None


def summaries(admin: Admin) -> list[Summary]:
    """All topics that are called like dead-letter topics. They are read, since offsets count markers of transactions too."""
    return [summary(admin, name) for name in admin.topics.names() if name.endswith(SUFFIX)]


def summary(admin: Admin, topic: str) -> Summary:
    committed = admin.groups.committed(redrive_group(topic))
    records = left = 0
    newest: DeadLetter | None = None
    for one in read(admin.connection.bootstrap, topic, {}, timeout_s=admin.connection.timeout_s):
        record = one.record
        records += 1
        left += record.offset >= committed.get(TopicPartition(topic, record.partition), 0)
        if newest is None or record.timestamp_ms >= newest.record.timestamp_ms:
            newest = one
    return Summary(topic, records, left, newest)


def matches(one: DeadLetter, reason: str | None) -> bool:
    """Whether the reason contains a text, whatever the case; always, when none is given."""
    return reason is None or reason.lower() in (one.reason or "").lower()
