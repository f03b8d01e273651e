"""Redrive: dead letters back to where they came from, each record exactly once.

One transaction holds the records that are sent, a note of each (``redrive_memory``) and the position of the group
``<dead-letter topic>.redrive``. A redrive that is killed goes on where its last transaction ended, and a read_committed reader sees
nothing twice. The transactional id is the group's name: whoever begins a redrive aborts the open transaction of an older one, and
fences it.

All letters that are left are surveyed first, then ``redrive_decisions`` decides about each. What stays is put back at the end of the
dead-letter topic if it is before a letter that is finished, in the same transaction, because a position can only say "up to here".

A record keeps its time. Where that is older than the topic keeps records, retention would take it again within minutes, maybe before it was
read: such records are counted, and nothing is sent until it is said which times they shall have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.connection import DEFAULT_TIMEOUT_S, Connection
from millstream.client.dead_letters.decisions import (
    Candidate,
    Decisions,
    LetterPlace,
    Once,
    Outcome,
    Target,
    Timestamps,
    Withheld,
    candidate,
    decide,
    letter_order,
)
from millstream.client.dead_letters.letters import (
    FIRST,
    REDRIVEN,
    DeadLetter,
    Identity,
    format_first,
    matches,
    read,
    redrive_group,
    redriven_topic,
)
from millstream.client.dead_letters.newer_records import NewestRecords
from millstream.client.dead_letters.redriven import create_notes, note_of, remembered
from millstream.client.errors import ClientError, UnknownPartition, UnknownTopic, translate
from millstream.client.library import KafkaConsumer, KafkaException, KafkaTopicPartition, make
from millstream.client.producer import Producer
from millstream.client.record import Headers
from millstream.client.retention import Retention
from millstream.core.types import TopicPartition

__all__ = ["Newer", "Redriven", "Target", "Timestamps", "Wish", "execute", "expiry", "plan", "target"]

MOST_RECORDS = 5_000
MOST_BYTES = 16 << 20

Count = Callable[[int], None]


def _ignore(count: int) -> None:
    """Take no notice of progress."""


@dataclass(frozen=True)
class Wish:
    """Which letters of a dead-letter topic to send back, at most ``limit`` of them, to their origin or to another topic."""

    topic: str
    to: str | None = None
    reason: str | None = None
    limit: int | None = None
    # None: the original ones, unless retention would take such records.
    timestamps: Timestamps | None = None
    pipeline: str | None = None
    flow: str | None = None
    overwrite_newer: bool = False
    """Send also what is older than the newest record of its key."""
    again: bool = False
    """Send also records that were sent back before."""


class Newer(NamedTuple):
    """A letter that stays, because the topic that it goes to has a newer record of its key."""

    dead_letter: TopicPartition
    offset: int
    origin: Identity | None
    key: bytes
    newer_partition: int | None
    newer_offset: int | None


@dataclass(frozen=True)
class Redriven:
    """What would be, or was, sent where, how many stay because of the filter, and how many of those sent retention takes.

    ``repeated`` letters are about records that other letters or an earlier redrive have sent. ``newer`` letters stay because the topic
    has a newer record of their key; ``examples`` are some of them.
    """

    sent: Mapping[Target, int]
    kept: int
    expired: Mapping[Target, int] = field(default_factory=dict)
    repeated: int = 0
    newer: int = 0
    examples: tuple[Newer, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.sent.values())

    @property
    def expired_count(self) -> int:
        return sum(self.expired.values())


def plan(admin: Admin, wish: Wish, *, looking: Count = _ignore) -> Redriven:
    """What a redrive would do now. Nothing is changed. ClientError for a record that cannot be sent.

    ``looking`` is called with the number of records read so far in search of newer ones.
    """
    committed = admin.groups.committed(redrive_group(wish.topic))
    return _Survey(admin, wish, committed, looking).planned


def execute(
    admin: Admin,
    wish: Wish,
    *,
    each: Count = _ignore,
    batch_records: int = MOST_RECORDS,
    looking: Count = _ignore,
) -> Redriven:
    """Send back what can be sent; ``each`` is called with the number of records sent so far, ``looking`` as for ``plan``."""
    # Without anything to do, nothing is fenced. Looking for newer records takes time, and is done once.
    committed = admin.groups.committed(redrive_group(wish.topic))
    most = _Survey(admin, replace(wish, overwrite_newer=True), committed, looking).planned
    if not most.count and not most.repeated:
        return most
    redrive = _Redrive(admin, wish)
    try:
        return redrive.run(each, batch_records, looking)
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
    found = _target(one, wish)
    if found is None:
        raise _no_target(wish.topic, LetterPlace(one.record.partition, one.record.offset))
    return found


def _target(one: DeadLetter, wish: Wish) -> Target | None:
    if wish.to is not None:
        return Target(wish.to, None)
    return None if one.topic is None else Target(one.topic, one.partition)


def _no_target(topic: str, at: LetterPlace) -> ClientError:
    return ClientError(
        f"the record at {TopicPartition(topic, at.partition)} offset {at.offset} does not say which topic it came from",
        hint="say where such records go, with --to TOPIC, or leave them out with --reason, --flow or --pipeline",
    )


def original_headers(one: DeadLetter) -> Headers:
    """Return the headers of the original record, how often it was sent back, this time included, and its place in the order.

    That is the place of the original, or of the letter if it names no original. Without it, a record that was sent
    with a new time would count as newer than the letters of its key that follow.
    """
    record = one.record
    letter = Identity(record.topic, record.partition, record.offset, letter_order(one, by_offset=False))
    place = format_first(one.first or one.identity or letter)
    return (*one.headers, (REDRIVEN, str(one.redriven + 1).encode()), (FIRST, place))


def timestamp(one: DeadLetter, wish: Wish) -> int | None:
    """The time that a record is sent with; None: that of sending."""
    timestamp_ms = one.record.timestamp_ms if one.timestamp_ms is None else one.timestamp_ms
    return timestamp_ms if timestamp_ms > 0 and wish.timestamps != "now" else None


class _LogEnds:
    """Where the partitions ended that letters come from, when the redrive began."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._ends: dict[str, dict[int, int]] = {}

    def has(self, origin: Identity) -> bool:
        """Whether a record was ever written at that offset. If not, the topic was deleted and created again."""
        if origin.topic not in self._ends:
            self._ends[origin.topic] = self._read(origin.topic)
        return origin.offset < self._ends[origin.topic].get(origin.partition, 0)

    def _read(self, topic: str) -> dict[int, int]:
        try:
            partitions = self._admin.topics.partitions(topic)
        except UnknownTopic:
            return {}
        found = self._admin.offsets.list(dict.fromkeys(partitions, "latest"))
        return {partition.partition: answer.offset for partition, answer in found.items()}


class _Survey:
    """All letters that are left, and what is to become of them."""

    def __init__(
        self, admin: Admin, wish: Wish, committed: Mapping[TopicPartition, int], looking: Count
    ) -> None:
        self._wish = wish
        self._log_ends = _LogEnds(admin)
        retention = Retention(admin)
        times: dict[LetterPlace, int] = {}
        self.letters: list[Candidate] = []
        for one in _left(admin, wish.topic, committed):
            letter = self.candidate(one)
            self.letters.append(letter)
            timestamp_ms = timestamp(one, wish) if letter.chosen else None
            if timestamp_ms is not None:
                times[letter.at] = timestamp_ms
        self.letters.sort(key=lambda letter: letter.at)
        wanted = {letter.once for letter in self.letters if letter.once is not None}
        done: set[Once] = set() if wish.again else remembered(admin, wish.topic, wanted)
        self.newest: NewestRecords | None = None
        if not wish.overwrite_newer:
            pending = [letter for letter in self.letters if letter.chosen and letter.once not in done]
            self.newest = NewestRecords(admin, pending, each=looking)
            self.newest.look()
        newest = None if self.newest is None else self.newest.newest
        self.decisions: Decisions = decide(self.letters, done=done, newest=newest, limit=wish.limit)
        sent: Counter[Target] = Counter()
        expired: Counter[Target] = Counter()
        for letter in self.letters:
            if self.decisions.outcomes.get(letter.at) is not Outcome.SENT:
                continue
            where = letter.target
            if where is None:
                raise _no_target(wish.topic, letter.at)
            sent[where] += 1
            if letter.at in times and retention.takes(where.topic, times[letter.at]):
                expired[where] += 1
        _check(admin, sent)
        self.planned = Redriven(
            dict(sorted(sent.items(), key=lambda row: (row[0].topic, row[0].partition or 0))),
            self.decisions.count(Outcome.FILTERED),
            dict(expired),
            self.decisions.count(Outcome.REPEATED),
            self.decisions.count(Outcome.NEWER),
            tuple(self._example(one) for one in self.decisions.examples),
        )

    def candidate(self, one: DeadLetter) -> Candidate:
        wish = self._wish
        if not matches(one, wish.reason, pipeline=wish.pipeline, flow=wish.flow):
            return candidate(one, None, chosen=False)
        origin = one.identity
        exists = origin is not None and wish.to is None and self._log_ends.has(origin)
        return candidate(one, _target(one, wish), chosen=True, origin_exists=exists)

    def _example(self, withheld: Withheld) -> Newer:
        letter, newer = withheld
        assert letter.group is not None
        return Newer(
            TopicPartition(self._wish.topic, letter.at.partition),
            letter.at.offset,
            letter.record,
            letter.group.key,
            newer.partition,
            newer.offset,
        )


class _Redrive:
    """One run. The order matters: end what an older run has left open, and only then ask for the position."""

    def __init__(self, admin: Admin, wish: Wish) -> None:
        connection = admin.connection
        group = redrive_group(wish.topic)
        self._admin = admin
        self._wish = wish
        self._sent = 0
        self._overtaken: set[Once | LetterPlace] = set()
        """Letters for whose keys a newer record has arrived since the survey."""
        self._member = _member(connection, group)
        self._producer = Producer(
            connection.bootstrap,
            transactional_id=group,
            timeout_s=max(connection.timeout_s, DEFAULT_TIMEOUT_S),
            options=connection.options,
        )

    def run(self, each: Count, batch_records: int, looking: Count) -> Redriven:
        self._producer.prepare_transactions()
        committed = self._committed()
        self._survey = _Survey(self._admin, self._wish, committed, looking)
        planned = self._survey.planned
        if planned.expired_count and self._wish.timestamps is None:
            raise expiry(self._admin, planned)
        if planned.count:
            create_notes(self._admin, self._wish.topic)
        for batch in _batches(self._letters(committed), batch_records):
            self._send(batch)
            each(self._sent)
        return self._told(planned)

    def close(self) -> None:
        self._member.close()
        self._producer.abandon()

    def _letters(self, committed: Mapping[TopicPartition, int]) -> Iterator[DeadLetter]:
        """The letters up to the last that is finished, in the order in which they were decided about."""
        for partition, end in sorted(self._survey.decisions.ends.items()):
            with closing(_left(self._admin, self._wish.topic, committed, partition)) as letters:
                for one in letters:
                    if one.record.offset >= end:
                        break
                    yield one

    def _send(self, batch: Sequence[DeadLetter]) -> None:
        if self._survey.newest is not None:
            self._survey.newest.look()
        positions: dict[TopicPartition, int] = {}
        sent = 0
        with self._producer.transaction() as transaction:
            for one in batch:
                outcome = self._outcome(one)
                if outcome is Outcome.SENT:
                    self._send_one(one)
                    sent += 1
                elif outcome is not Outcome.REPEATED:
                    self._put_back(one)
                positions[TopicPartition(one.record.topic, one.record.partition)] = one.record.offset + 1
            transaction.commit_positions(self._member, positions)
        self._sent += sent

    def _outcome(self, one: DeadLetter) -> Outcome:
        """What was decided, unless a newer record of the key has arrived since."""
        letter = self._survey.candidate(one)
        outcome = self._survey.decisions.outcomes.get(letter.at, Outcome.FILTERED)
        if outcome is Outcome.REPEATED and letter.once in self._overtaken:
            return Outcome.NEWER
        if outcome is not Outcome.SENT or self._survey.newest is None or letter.group is None:
            return outcome
        newer = self._survey.newest.newest.get(letter.group)
        if newer is None or newer.order <= letter.order:
            return outcome
        self._overtaken.add(letter.once or letter.at)
        return Outcome.NEWER

    def _told(self, planned: Redriven) -> Redriven:
        """The plan, corrected by what arrived while it was carried out. Letters that were not passed are not counted as kept."""
        decisions = self._survey.decisions
        passed = sum(
            outcome is Outcome.FILTERED and at.offset < decisions.ends.get(at.partition, 0)
            for at, outcome in decisions.outcomes.items()
        )
        return _corrected(replace(planned, kept=passed), self._survey.letters, decisions, self._overtaken)

    def _send_one(self, one: DeadLetter) -> None:
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
        if one.identity is not None:
            at = LetterPlace(record.partition, record.offset)
            key, note = note_of(Once(where.topic, one.identity), at)
            self._producer.send(redriven_topic(self._wish.topic), note, key=key, partition=0)

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


def _corrected(
    planned: Redriven, letters: Iterable[Candidate], decisions: Decisions, overtaken: set[Once | LetterPlace]
) -> Redriven:
    """A plan without the letters that a newer record has overtaken."""
    if not overtaken:
        return planned
    sent = Counter(planned.sent)
    repeated, newer = planned.repeated, planned.newer
    for letter in letters:
        outcome = decisions.outcomes.get(letter.at)
        if (letter.once or letter.at) not in overtaken or letter.target is None:
            continue
        if outcome is Outcome.SENT:
            sent[letter.target] -= 1
            newer += 1
        elif outcome is Outcome.REPEATED:
            repeated -= 1
            newer += 1
    return replace(planned, sent=dict(+sent), repeated=repeated, newer=newer)


def _left(
    admin: Admin, topic: str, committed: Mapping[TopicPartition, int], partition: int | None = None
) -> Generator[DeadLetter, None, None]:
    connection = admin.connection
    return read(
        connection.bootstrap,
        topic,
        committed,
        timeout_s=connection.timeout_s,
        partitions=None if partition is None else [partition],
        options=connection.options,
    )


def _batches(letters: Iterator[DeadLetter], most: int) -> Iterator[list[DeadLetter]]:
    batch: list[DeadLetter] = []
    size = 0
    for one in letters:
        batch.append(one)
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
