"""Redrive: dead letters back to where they came from, each exactly once.

One transaction holds the records that are sent and the position of the group ``<dead-letter topic>.redrive``, so a redrive that is
killed goes on where its last transaction ended, and a read_committed reader sees nothing twice. The transactional id is the group's
name: whoever begins a redrive ends what an older one has left open, and fences it.

What a filter does not choose stays: it is put back at the end of the dead-letter topic, in the same transaction, because a position can
only say "up to here".

A record keeps its time. Where that is older than the topic keeps records, retention would take it again within minutes, maybe before it was
read: such records are counted, and nothing is sent until it is said which times they shall have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from millstream.client.admin import Admin
from millstream.client.connection import DEFAULT_TIMEOUT_S, Connection
from millstream.client.dead_letters import (
    REDRIVEN,
    DeadLetter,
    matches,
    read,
    redrive_group,
)
from millstream.client.errors import ClientError, UnknownPartition, UnknownTopic, translate
from millstream.client.library import KafkaConsumer, KafkaException, KafkaTopicPartition, make
from millstream.client.producer import Producer
from millstream.client.record import Headers
from millstream.client.retention import Retention
from millstream.core.types import TopicPartition

MOST_RECORDS = 5_000
MOST_BYTES = 16 << 20


Timestamps = Literal["original", "now"]


@dataclass(frozen=True)
class Wish:
    """What to send back: of this dead-letter topic, to the origin or to another topic, those whose reason contains a text, at most so many."""

    topic: str
    to: str | None = None
    reason: str | None = None
    limit: int | None = None
    # None: the original ones, unless retention would take such records.
    timestamps: Timestamps | None = None


class Target(NamedTuple):
    """Where a record goes; no partition: the key decides."""

    topic: str
    partition: int | None


@dataclass(frozen=True)
class Redriven:
    """What would be, or was, sent where, how many stay because of the filter, and how many of those sent retention takes."""

    sent: Mapping[Target, int]
    kept: int
    expired: Mapping[Target, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.sent.values())

    @property
    def expired_count(self) -> int:
        return sum(self.expired.values())


def plan(admin: Admin, wish: Wish) -> Redriven:
    """What a redrive would do now. Nothing is changed. ClientError for a record that cannot be sent."""
    committed = admin.groups.committed(redrive_group(wish.topic))
    done = _Done(wish, Retention(admin))
    for chosen, one in _until_limit(_left(admin, wish.topic, committed), wish):
        done.note(one, target(one, wish) if chosen else None)
    _check(admin, done.sent)
    return done.told()


def execute(
    admin: Admin,
    wish: Wish,
    *,
    each: Callable[[int], None] = lambda count: None,
    batch_records: int = MOST_RECORDS,
) -> Redriven:
    """Do what is planned; ``each`` is called with the number of records sent so far."""
    planned = plan(admin, wish)
    if not planned.count:
        return planned
    if planned.expired_count and wish.timestamps is None:
        raise expiry(admin, planned)
    # No further than the last that was chosen: what comes after it can stay where it is.
    redrive = _Redrive(admin, replace(wish, limit=planned.count))
    try:
        return redrive.run(each, batch_records)
    finally:
        redrive.close()


def expiry(admin: Admin, planned: Redriven) -> ClientError:
    """Why a plan is not done, and between what to choose."""
    retention = Retention(admin)
    topics = sorted({where.topic for where in planned.expired})
    kept = ", ".join(f"{name} (retention.ms={retention.kept_ms(name)})" for name in topics)
    return ClientError(
        f"{planned.expired_count:,} of {planned.count:,} records carry times older than what is kept in {kept}: "
        "retention may delete them before they are read",
        hint="give them new times with --timestamps now, or send them as they are with --timestamps original; "
        "or raise retention.ms of the topic first",
    )


def target(one: DeadLetter, wish: Wish) -> Target:
    """Where a dead letter goes: where it came from, unless there is another wish."""
    if wish.to is not None:
        return Target(wish.to, None)
    if one.topic is None:
        at = TopicPartition(one.record.topic, one.record.partition)
        raise ClientError(
            f"the record at {at} offset {one.record.offset} does not say which topic it came from",
            hint="say where such records go, with --to TOPIC",
        )
    return Target(one.topic, one.partition)


def original_headers(one: DeadLetter) -> Headers:
    """The headers of the original record, and how often it was sent back, this time included."""
    return (*one.headers, (REDRIVEN, str(one.redriven + 1).encode()))


def timestamp(one: DeadLetter, wish: Wish) -> int | None:
    """The time that a record is sent with; None: that of sending."""
    timestamp_ms = one.record.timestamp_ms if one.timestamp_ms is None else one.timestamp_ms
    return timestamp_ms if timestamp_ms > 0 and wish.timestamps != "now" else None


class _Done:
    """Counts of what went where."""

    def __init__(self, wish: Wish, retention: Retention) -> None:
        self.sent: Counter[Target] = Counter()
        self.expired: Counter[Target] = Counter()
        self.kept = 0
        self._wish = wish
        self._retention = retention

    def note(self, one: DeadLetter, where: Target | None) -> None:
        if where is None:
            self.kept += 1
            return
        self.sent[where] += 1
        timestamp_ms = timestamp(one, self._wish)
        if timestamp_ms is not None and self._retention.takes(where.topic, timestamp_ms):
            self.expired[where] += 1

    def told(self) -> Redriven:
        rows = sorted(self.sent.items(), key=lambda row: (row[0].topic, row[0].partition or 0))
        return Redriven(dict(rows), self.kept, dict(self.expired))


class _Redrive:
    """One run. The order matters: end what an older run has left open, and only then ask for the position."""

    def __init__(self, admin: Admin, wish: Wish) -> None:
        connection = admin.connection
        group = redrive_group(wish.topic)
        self._admin = admin
        self._wish = wish
        self._done = _Done(wish, Retention(admin))
        self._member = _member(connection, group)
        self._producer = Producer(
            connection.bootstrap,
            transactional_id=group,
            timeout_s=max(connection.timeout_s, DEFAULT_TIMEOUT_S),
            options=connection.options,
        )

    def run(self, each: Callable[[int], None], batch_records: int) -> Redriven:
        self._producer.prepare_transactions()
        left = _left(self._admin, self._wish.topic, self._committed())
        for batch in _batches(_until_limit(left, self._wish), batch_records):
            self._send(batch)
            each(sum(self._done.sent.values()))
        return self._done.told()

    def close(self) -> None:
        self._member.close()
        self._producer.abandon()

    def _send(self, batch: Sequence[tuple[bool, DeadLetter]]) -> None:
        positions: dict[TopicPartition, int] = {}
        with self._producer.transaction() as transaction:
            for chosen, one in batch:
                if chosen:
                    self._done.note(one, self._send_one(one))
                else:
                    self._put_back(one)
                    self._done.note(one, None)
                positions[TopicPartition(one.record.topic, one.record.partition)] = one.record.offset + 1
            transaction.commit_positions(self._member, positions)

    def _send_one(self, one: DeadLetter) -> Target:
        where = target(one, self._wish)
        record = one.record
        self._producer.send(
            where.topic,
            record.value,
            key=record.key,
            headers=original_headers(one),
            partition=where.partition,
            timestamp_ms=timestamp(one, self._wish),
        )
        return where

    def _put_back(self, one: DeadLetter) -> None:
        record = one.record
        self._producer.send(
            record.topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms if record.timestamp_ms > 0 else None,
        )

    def _committed(self) -> dict[TopicPartition, int]:
        """The position, once no transaction of an older run is undecided (librdkafka asks for stable offsets)."""
        partitions = [KafkaTopicPartition(*one) for one in self._admin.topics.partitions(self._wish.topic)]
        try:
            found = self._member.committed(partitions, timeout=self._admin.connection.timeout_s)
        except KafkaException as error:
            raise translate(
                error, doing=f"read the offsets of group {redrive_group(self._wish.topic)!r}"
            ) from None
        return {TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0}


def _member(connection: Connection, group: str) -> KafkaConsumer:
    """A consumer that reads nothing and joins nothing: it stands for the group in a transaction."""
    config = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    return make(KafkaConsumer, connection.config(config))


def _left(admin: Admin, topic: str, committed: Mapping[TopicPartition, int]) -> Iterator[DeadLetter]:
    return read(admin.connection.bootstrap, topic, committed, timeout_s=admin.connection.timeout_s)


def _until_limit(letters: Iterator[DeadLetter], wish: Wish) -> Iterator[tuple[bool, DeadLetter]]:
    """Each with whether it is chosen, up to the last that may be."""
    count = 0
    for one in letters:
        if wish.limit is not None and count >= wish.limit:
            return
        chosen = matches(one, wish.reason)
        count += chosen
        yield chosen, one


def _batches(
    letters: Iterator[tuple[bool, DeadLetter]], most: int
) -> Iterator[list[tuple[bool, DeadLetter]]]:
    batch: list[tuple[bool, DeadLetter]] = []
    size = 0
    for chosen, one in letters:
        batch.append((chosen, one))
        size += len(one.record.value or b"")
        if len(batch) >= most or size >= MOST_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check(admin: Admin, targets: Iterable[Target]) -> None:
    """All topics and partitions exist: better known before the first record is sent."""
    known: dict[str, set[int]] = {}
    for one in targets:
        if one.topic not in known:
            try:
                known[one.topic] = {partition.id for partition in admin.topics.get(one.topic).partitions}
            except UnknownTopic as error:
                raise UnknownTopic(
                    error.message, hint=f"{error.hint} or send elsewhere with --to", code=error.code
                ) from None
        if one.partition is not None and one.partition not in known[one.topic]:
            raise UnknownPartition(
                f"topic {one.topic!r} has no partition {one.partition} any more",
                hint="send the records elsewhere with --to TOPIC; their keys decide on the partition then",
            )
