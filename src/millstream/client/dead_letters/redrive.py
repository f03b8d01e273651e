"""Redrive: send dead letters back to their origin, each record exactly once.

One transaction holds the records that are sent, a marker for each (``redriven.py``) and the
position of the group ``<dead-letter topic>.redrive``. A redrive that was killed continues after its
last transaction, and a read_committed reader sees no duplicates. The transactional id is the name
of the group: a new redrive aborts the open transaction of an older one, and fences it.

All remaining letters are surveyed first, then ``decisions.py`` decides about each. A letter that
stays although a later one is finished is put back at the end of the dead-letter topic, in the same
transaction, because a position cannot have gaps.

A record keeps its timestamp. If that is older than the retention of the topic, the record would be
deleted again within minutes, perhaps before it is read. Such records are counted, and nothing is
sent until the caller has chosen their timestamps.
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
    Outcome,
    Redelivery,
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
from millstream.client.dead_letters.redriven import already_redriven, create_marker_topic, marker_of
from millstream.client.errors import ClientError, UnknownPartition, UnknownTopic, translate
from millstream.client.library import KafkaConsumer, KafkaException, KafkaTopicPartition, make
from millstream.client.producer import Producer
from millstream.client.record import Headers
from millstream.client.retention import Retention
from millstream.core.types import TopicPartition

__all__ = [
    "RedriveRequest",
    "Redriven",
    "Target",
    "Timestamps",
    "WithheldLetter",
    "execute",
    "expiry",
    "plan",
    "target",
]

MAX_RECORDS = 5_000
MAX_BYTES = 16 << 20

Count = Callable[[int], None]


def _ignore(count: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class RedriveRequest:
    """Which letters of a dead-letter topic to send back, at most ``limit``, and where.

    ``to`` is the target topic; the default is the origin of each letter.
    """

    topic: str
    to: str | None = None
    reason: str | None = None
    limit: int | None = None
    # None: the original ones, unless retention would delete such records.
    timestamps: Timestamps | None = None
    pipeline: str | None = None
    flow: str | None = None
    overwrite_newer: bool = False
    """Also send records that are older than the newest record of their key."""
    again: bool = False
    """Also send records that were sent back before."""


class WithheldLetter(NamedTuple):
    """A letter that stays, because its target topic has a newer record of its key."""

    dead_letter: TopicPartition
    offset: int
    origin: Identity | None
    key: bytes
    newer_partition: int | None
    newer_offset: int | None


@dataclass(frozen=True)
class Redriven:
    """The plan or result of a redrive.

    ``sent`` counts records by target, ``kept`` letters that the filter left, and ``expired`` the
    sent records that retention deletes at once. ``repeated`` letters are about records that other
    letters or an earlier redrive have sent. ``newer`` letters stay because the topic has a newer
    record of their key; ``examples`` are some of them.
    """

    sent: Mapping[Target, int]
    kept: int
    expired: Mapping[Target, int] = field(default_factory=dict)
    repeated: int = 0
    newer: int = 0
    examples: tuple[WithheldLetter, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.sent.values())

    @property
    def expired_count(self) -> int:
        return sum(self.expired.values())


def plan(admin: Admin, request: RedriveRequest, *, looking: Count = _ignore) -> Redriven:
    """Return what a redrive would do now, without changes; ClientError if a record cannot be sent.

    ``looking`` is called with the number of records read so far in search of newer ones.
    """
    committed = admin.groups.committed(redrive_group(request.topic))
    return _Survey(admin, request, committed, looking).planned


def execute(
    admin: Admin,
    request: RedriveRequest,
    *,
    each: Count = _ignore,
    batch_records: int = MAX_RECORDS,
    looking: Count = _ignore,
) -> Redriven:
    """Send back all letters that can be sent.

    ``each`` is called with the number of records sent so far, ``looking`` as for ``plan``.
    """
    # If there is nothing to send, no producer is fenced. The slow search for newer records runs
    # once.
    committed = admin.groups.committed(redrive_group(request.topic))
    upper_bound = _Survey(admin, replace(request, overwrite_newer=True), committed, looking).planned
    if not upper_bound.count and not upper_bound.repeated:
        return upper_bound
    redrive = _Redrive(admin, request)
    try:
        return redrive.run(each, batch_records, looking)
    finally:
        redrive.close()


def expiry(admin: Admin, planned: Redriven) -> ClientError:
    """Return the error that explains why a plan is not executed, and the choices."""
    retention = Retention(admin)
    topics = sorted({target.topic for target in planned.expired})
    kept = ", ".join(f"{name} (retention.ms={retention.kept_ms(name)})" for name in topics)
    return ClientError(
        f"{planned.expired_count:,} of {planned.count:,} records are older than the retention "
        f"of {kept}, which may delete them before they are read",
        hint="give them new timestamps with --timestamps now, send them unchanged "
        "with --timestamps original, or raise retention.ms of the topic first",
    )


def target(letter: DeadLetter, request: RedriveRequest) -> Target:
    """Return where a dead letter goes: to its origin, unless the request names a topic."""
    destination = _target(letter, request)
    if destination is None:
        raise _no_target(request.topic, LetterPlace(letter.record.partition, letter.record.offset))
    return destination


def _target(letter: DeadLetter, request: RedriveRequest) -> Target | None:
    if request.to is not None:
        return Target(request.to, None)
    return None if letter.topic is None else Target(letter.topic, letter.partition)


def _no_target(topic: str, at: LetterPlace) -> ClientError:
    return ClientError(
        f"the record at {TopicPartition(topic, at.partition)} offset {at.offset} "
        "has no header with its original topic",
        hint="choose a topic for such records with --to TOPIC, or leave them out with --reason, "
        "--flow or --pipeline",
    )


def original_headers(letter: DeadLetter) -> Headers:
    """Return the headers of the original record, with a new ``dlq.redriven`` and ``dlq.first``.

    ``dlq.first`` is the position of the original, or of the letter if it names no original. Without
    it, a record sent with a new timestamp would count as newer than later letters of its key.
    """
    record = letter.record
    letter_identity = Identity(
        record.topic, record.partition, record.offset, letter_order(letter, by_offset=False)
    )
    place = format_first(letter.first or letter.identity or letter_identity)
    return (*letter.headers, (REDRIVEN, str(letter.redriven + 1).encode()), (FIRST, place))


def timestamp(letter: DeadLetter, request: RedriveRequest) -> int | None:
    """Return the timestamp to send a record with; None: the time of sending."""
    timestamp_ms = (
        letter.record.timestamp_ms if letter.timestamp_ms is None else letter.timestamp_ms
    )
    return timestamp_ms if timestamp_ms > 0 and request.timestamps != "now" else None


class _LogEnds:
    """The ends, at the start of the redrive, of the partitions that letters come from."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._ends: dict[str, dict[int, int]] = {}

    def has(self, origin: Identity) -> bool:
        """Return whether a record was ever written at that offset.

        If not, the topic was deleted and created again.
        """
        if origin.topic not in self._ends:
            self._ends[origin.topic] = self._read(origin.topic)
        return origin.offset < self._ends[origin.topic].get(origin.partition, 0)

    def _read(self, topic: str) -> dict[int, int]:
        try:
            partitions = self._admin.topics.partitions(topic)
        except UnknownTopic:
            return {}
        listed = self._admin.offsets.list(dict.fromkeys(partitions, "latest"))
        return {partition.partition: result.offset for partition, result in listed.items()}


class _Survey:
    """All remaining letters, and the decisions about them."""

    def __init__(
        self,
        admin: Admin,
        request: RedriveRequest,
        committed: Mapping[TopicPartition, int],
        looking: Count,
    ) -> None:
        self._request = request
        self._log_ends = _LogEnds(admin)
        retention = Retention(admin)
        times: dict[LetterPlace, int] = {}
        self.letters: list[Candidate] = []
        for dead_letter in _remaining(admin, request.topic, committed):
            letter = self.candidate(dead_letter)
            self.letters.append(letter)
            timestamp_ms = timestamp(dead_letter, request) if letter.chosen else None
            if timestamp_ms is not None:
                times[letter.at] = timestamp_ms
        self.letters.sort(key=lambda letter: letter.at)
        redeliveries = {
            letter.redelivery for letter in self.letters if letter.redelivery is not None
        }
        done: set[Redelivery] = (
            set() if request.again else already_redriven(admin, request.topic, redeliveries)
        )
        self.newest: NewestRecords | None = None
        if not request.overwrite_newer:
            pending = [
                letter for letter in self.letters if letter.chosen and letter.redelivery not in done
            ]
            self.newest = NewestRecords(admin, pending, each=looking)
            self.newest.scan()
        newest = None if self.newest is None else self.newest.newest
        self.decisions: Decisions = decide(
            self.letters, done=done, newest=newest, limit=request.limit
        )
        sent: Counter[Target] = Counter()
        expired: Counter[Target] = Counter()
        for letter in self.letters:
            if self.decisions.outcomes.get(letter.at) is not Outcome.SENT:
                continue
            destination = letter.target
            if destination is None:
                raise _no_target(request.topic, letter.at)
            sent[destination] += 1
            if letter.at in times and retention.deletes(destination.topic, times[letter.at]):
                expired[destination] += 1
        _check_targets(admin, sent)
        self.planned = Redriven(
            dict(sorted(sent.items(), key=lambda row: (row[0].topic, row[0].partition or 0))),
            self.decisions.count(Outcome.FILTERED),
            dict(expired),
            self.decisions.count(Outcome.REPEATED),
            self.decisions.count(Outcome.NEWER),
            tuple(map(self._example, self.decisions.examples)),
        )

    def candidate(self, letter: DeadLetter) -> Candidate:
        request = self._request
        if not matches(letter, request.reason, pipeline=request.pipeline, flow=request.flow):
            return candidate(letter, None, chosen=False)
        origin = letter.identity
        exists = origin is not None and request.to is None and self._log_ends.has(origin)
        return candidate(letter, _target(letter, request), chosen=True, origin_exists=exists)

    def _example(self, withheld: Withheld) -> WithheldLetter:
        letter, newer = withheld
        assert letter.group is not None
        return WithheldLetter(
            TopicPartition(self._request.topic, letter.at.partition),
            letter.at.offset,
            letter.record,
            letter.group.key,
            newer.partition,
            newer.offset,
        )


class _Redrive:
    """One run. The order matters.

    It first ends the transaction that an older run left open, and only then reads the position.
    """

    def __init__(self, admin: Admin, request: RedriveRequest) -> None:
        connection = admin.connection
        group = redrive_group(request.topic)
        self._admin = admin
        self._request = request
        self._sent = 0
        self._overtaken: set[Redelivery | LetterPlace] = set()
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
        self._survey = _Survey(self._admin, self._request, committed, looking)
        planned = self._survey.planned
        if planned.expired_count and self._request.timestamps is None:
            raise expiry(self._admin, planned)
        if planned.count:
            create_marker_topic(self._admin, self._request.topic)
        for batch in _batches(self._letters(committed), batch_records):
            self._send(batch)
            each(self._sent)
        return self._result(planned)

    def close(self) -> None:
        self._member.close()
        self._producer.abandon()

    def _letters(self, committed: Mapping[TopicPartition, int]) -> Iterator[DeadLetter]:
        """Yield the letters up to the last finished one, in the order of the decisions."""
        for partition, end in sorted(self._survey.decisions.ends.items()):
            with closing(
                _remaining(self._admin, self._request.topic, committed, partition)
            ) as letters:
                for letter in letters:
                    if letter.record.offset >= end:
                        break
                    yield letter

    def _send(self, batch: Sequence[DeadLetter]) -> None:
        if self._survey.newest is not None:
            self._survey.newest.scan()
        positions: dict[TopicPartition, int] = {}
        sent = 0
        with self._producer.transaction() as transaction:
            for letter in batch:
                outcome = self._outcome(letter)
                if outcome is Outcome.SENT:
                    self._send_letter(letter)
                    sent += 1
                elif outcome is not Outcome.REPEATED:
                    self._put_back(letter)
                positions[TopicPartition(letter.record.topic, letter.record.partition)] = (
                    letter.record.offset + 1
                )
            transaction.commit_positions(self._member, positions)
        self._sent += sent

    def _outcome(self, letter: DeadLetter) -> Outcome:
        """Return the decision, unless a newer record of the key has arrived since."""
        candidate = self._survey.candidate(letter)
        outcome = self._survey.decisions.outcomes.get(candidate.at, Outcome.FILTERED)
        if outcome is Outcome.REPEATED and candidate.redelivery in self._overtaken:
            return Outcome.NEWER
        if outcome is not Outcome.SENT or self._survey.newest is None or candidate.group is None:
            return outcome
        newer = self._survey.newest.newest.get(candidate.group)
        if newer is None or newer.order <= candidate.order:
            return outcome
        self._overtaken.add(candidate.redelivery or candidate.at)
        return Outcome.NEWER

    def _result(self, planned: Redriven) -> Redriven:
        """Return the plan, corrected by the records that arrived while it was executed.

        Only letters before the new position count as kept.
        """
        decisions = self._survey.decisions
        passed = sum(
            outcome is Outcome.FILTERED and at.offset < decisions.ends.get(at.partition, 0)
            for at, outcome in decisions.outcomes.items()
        )
        return _without_overtaken(
            replace(planned, kept=passed), self._survey.letters, decisions, self._overtaken
        )

    def _send_letter(self, letter: DeadLetter) -> None:
        destination = target(letter, self._request)
        record = letter.record
        self._producer.send(
            destination.topic,
            record.value,
            key=record.key,
            headers=original_headers(letter),
            partition=destination.partition,
            timestamp_ms=timestamp(letter, self._request),
        )
        if letter.identity is not None:
            at = LetterPlace(record.partition, record.offset)
            key, marker = marker_of(Redelivery(destination.topic, letter.identity), at)
            self._producer.send(redriven_topic(self._request.topic), marker, key=key, partition=0)

    def _put_back(self, letter: DeadLetter) -> None:
        record = letter.record
        self._producer.send(
            record.topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms if record.timestamp_ms > 0 else None,
        )

    def _committed(self) -> dict[TopicPartition, int]:
        """Return the position when no transaction of an older run is undecided.

        librdkafka requests stable offsets, which waits for that.
        """
        partitions = [
            KafkaTopicPartition(*partition)
            for partition in self._admin.topics.partitions(self._request.topic)
        ]
        try:
            positions = self._member.committed(partitions, timeout=self._admin.connection.timeout_s)
        except KafkaException as error:
            raise translate(
                error, doing=f"read the offsets of group {redrive_group(self._request.topic)!r}"
            ) from None
        return {
            TopicPartition(position.topic, position.partition): position.offset
            for position in positions
            if position.offset >= 0
        }


def _member(connection: Connection, group: str) -> KafkaConsumer:
    """Create a consumer that does not read or join; it names the group in a transaction."""
    config = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    return make(KafkaConsumer, connection.config(config))


def _without_overtaken(
    planned: Redriven,
    letters: Iterable[Candidate],
    decisions: Decisions,
    overtaken: set[Redelivery | LetterPlace],
) -> Redriven:
    """Return a plan without the letters that a newer record has overtaken."""
    if not overtaken:
        return planned
    sent = Counter(planned.sent)
    repeated, newer = planned.repeated, planned.newer
    for letter in letters:
        outcome = decisions.outcomes.get(letter.at)
        if (letter.redelivery or letter.at) not in overtaken or letter.target is None:
            continue
        if outcome is Outcome.SENT:
            sent[letter.target] -= 1
            newer += 1
        elif outcome is Outcome.REPEATED:
            repeated -= 1
            newer += 1
    return replace(planned, sent=dict(+sent), repeated=repeated, newer=newer)


def _remaining(
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


def _batches(letters: Iterator[DeadLetter], max_records: int) -> Iterator[list[DeadLetter]]:
    batch: list[DeadLetter] = []
    size = 0
    for letter in letters:
        batch.append(letter)
        size += len(letter.record.value or b"")
        if len(batch) >= max_records or size >= MAX_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_targets(admin: Admin, targets: Iterable[Target]) -> None:
    """Raise before the first record is sent if a topic or partition does not exist."""
    known: dict[str, set[int]] = {}
    for destination in targets:
        if destination.topic not in known:
            try:
                known[destination.topic] = {
                    partition.id for partition in admin.topics.get(destination.topic).partitions
                }
            except UnknownTopic as error:
                raise UnknownTopic(
                    error.message, hint=f"{error.hint} or send elsewhere with --to", code=error.code
                ) from None
        if (
            destination.partition is not None
            and destination.partition not in known[destination.topic]
        ):
            raise UnknownPartition(
                f"topic {destination.topic!r} has no partition {destination.partition} any more",
                hint="send the records elsewhere with --to TOPIC; their keys then decide the partition",
            )
