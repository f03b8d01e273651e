"""Decide what a redrive does with each dead letter. Pure: no broker, no clock.

A letter is sent back, or stays, or is finished because its record was sent back already. Two rules
protect the target topic:

- **A record goes back once**, however many letters are about it. ``redelivery`` names the record
  and its target topic.
- **No record is overwritten by an older one.** Records with the same key are ordered by their
  offsets in the partition they came from, or by time if they go to another topic. A letter stays if
  the target has a newer record of its key. Newer letters of the same key do not count if the same
  redrive sends them afterwards, in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, NamedTuple

from millstream.client.dead_letters.letters import DeadLetter, Identity

Timestamps = Literal["original", "now"]
MAX_EXAMPLES = 5


class Target(NamedTuple):
    """The destination of a record. Without a partition, the key decides."""

    topic: str
    partition: int | None


class Redelivery(NamedTuple):
    """A record and the topic to which it is sent at most once."""

    to: str
    record: Identity


class Group(NamedTuple):
    """Records that replace one another: those of a key in a partition.

    If the key decides on the partition, they are those of a key in a topic.
    """

    target: Target
    by_offset: bool
    key: bytes


class LetterPlace(NamedTuple):
    """A position in the dead-letter topic."""

    partition: int
    offset: int


class NewerRecord(NamedTuple):
    """The newest record of a key: its rank in the order of its group, and its position."""

    order: int
    partition: int | None
    offset: int | None


@dataclass(frozen=True)
class Candidate:
    """The facts about a dead letter that decisions need.

    ``group`` is None if no record can be overwritten.
    """

    at: LetterPlace
    chosen: bool
    target: Target | None = None
    record: Identity | None = None
    group: Group | None = None
    order: int = 0

    @property
    def redelivery(self) -> Redelivery | None:
        if self.record is None or self.target is None:
            return None
        return Redelivery(self.target.topic, self.record)


class Outcome(Enum):
    """The result for a letter."""

    SENT = auto()
    FILTERED = auto()
    """It does not match, and stays."""
    REPEATED = auto()
    """Its record was sent back already: the letter is finished."""
    NEWER = auto()
    """The topic has a newer record of its key: the letter stays."""


class Withheld(NamedTuple):
    """A letter that stays because of a newer record."""

    letter: Candidate
    newer: NewerRecord


@dataclass(frozen=True)
class Decisions:
    """The outcome of each letter, in the order of sending, and the end of each partition."""

    outcomes: Mapping[LetterPlace, Outcome]
    ends: Mapping[int, int]
    """The offset behind the last finished letter. Later letters stay where they are."""
    examples: tuple[Withheld, ...] = ()

    def count(self, outcome: Outcome) -> int:
        return sum(decided is outcome for decided in self.outcomes.values())


def candidate(
    letter: DeadLetter, target: Target | None, *, chosen: bool, origin_exists: bool = True
) -> Candidate:
    """Reduce a letter to the facts that decisions need.

    If the origin does not exist any more, its offset says nothing about the records of the topic
    that has its name now.
    """
    record = letter.record
    at = LetterPlace(record.partition, record.offset)
    if not chosen:
        return Candidate(at, chosen=False)
    if target is None or record.key is None:
        return Candidate(at, True, target, letter.identity)
    origin = letter.identity
    by_offset = origin_exists and origin is not None and target == (origin.topic, origin.partition)
    group = Group(target, by_offset, record.key)
    return Candidate(at, True, target, origin, group, letter_order(letter, by_offset=by_offset))


def letter_order(letter: DeadLetter, *, by_offset: bool) -> int:
    """Return the rank of a letter's record among those of its key."""
    origin, first = letter.identity, letter.first
    if by_offset and origin is not None:
        return record_order(origin, first, by_offset=True)
    timestamp_ms = (
        letter.record.timestamp_ms if letter.timestamp_ms is None else letter.timestamp_ms
    )
    return timestamp_ms if first is None or first.timestamp_ms is None else first.timestamp_ms


def record_order(record: Identity, first: Identity | None, *, by_offset: bool) -> int:
    """Return the rank of a record among those of its key.

    A record that was sent back has the rank of its original.
    """
    if by_offset:
        same = first is not None and first[:2] == record[:2] and first.offset < record.offset
        return first.offset if same and first is not None else record.offset
    if first is not None and first.timestamp_ms is not None:
        return first.timestamp_ms
    return -1 if record.timestamp_ms is None else record.timestamp_ms


def decide(
    letters: Sequence[Candidate],
    *,
    done: Collection[Redelivery] = (),
    newest: Mapping[Group, NewerRecord] | None = None,
    limit: int | None = None,
) -> Decisions:
    """Decide about letters in the order in which they are sent.

    ``done`` has the records that were sent back before. ``newest`` has the newest record of each
    key, without those that the letters are about; None overwrites newer records.
    """
    decided = _Pass(done, newest)
    sent = [index for index, letter in enumerate(letters) if decided.decide(letter) is Outcome.SENT]
    if limit is None or len(sent) <= limit:
        return decided.result()
    allowed = _select(letters, sent, limit, in_order=newest is not None)
    decided = _Pass(done, newest, {letters[index].at for index in allowed})
    for letter in letters[: max(allowed) + 1]:
        decided.decide(letter)
    return decided.result()


def _select(
    letters: Sequence[Candidate], sent: Sequence[int], limit: int, *, in_order: bool
) -> set[int]:
    """Return the letters to send under a limit.

    A letter that is followed by newer ones of its key needs all of those.
    """
    if not in_order:
        return set(sent[:limit])
    last = {letters[index].group: index for index in sent}

    def complete_at(index: int) -> int:
        letter = letters[index]
        behind = last[letter.group]
        newer = letter.group is not None and letters[behind].order > letter.order
        return behind if newer else index

    return set(sorted(sent, key=lambda index: (complete_at(index), -letters[index].order))[:limit])


@dataclass
class _Pass:
    done: Collection[Redelivery]
    newest: Mapping[Group, NewerRecord] | None
    allowed: Collection[LetterPlace] | None = None
    """The letters that may be sent; None: all."""
    outcomes: dict[LetterPlace, Outcome] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    examples: list[Withheld] = field(default_factory=list)
    sent: set[Redelivery] = field(default_factory=set)
    highest: dict[Group, NewerRecord] = field(default_factory=dict)
    """The newest record of each key that this redrive sends."""

    def decide(self, letter: Candidate) -> Outcome:
        outcome = self._outcome(letter)
        self.outcomes[letter.at] = outcome
        if outcome is Outcome.SENT:
            self._add_sent(letter)
        if outcome in (Outcome.SENT, Outcome.REPEATED):
            self.ends[letter.at.partition] = letter.at.offset + 1
        return outcome

    def result(self) -> Decisions:
        return Decisions(self.outcomes, self.ends, tuple(self.examples))

    def _outcome(self, letter: Candidate) -> Outcome:
        if not letter.chosen:
            return Outcome.FILTERED
        if letter.redelivery is not None and (
            letter.redelivery in self.sent or letter.redelivery in self.done
        ):
            return Outcome.REPEATED
        newer = self._newer(letter)
        if newer is not None:
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append(Withheld(letter, newer))
            return Outcome.NEWER
        if self.allowed is not None and letter.at not in self.allowed:
            return Outcome.NEWER
        return Outcome.SENT

    def _newer(self, letter: Candidate) -> NewerRecord | None:
        if self.newest is None or letter.group is None:
            return None
        for newer in (self.newest.get(letter.group), self.highest.get(letter.group)):
            if newer is not None and newer.order > letter.order:
                return newer
        return None

    def _add_sent(self, letter: Candidate) -> None:
        if letter.redelivery is not None:
            self.sent.add(letter.redelivery)
        if letter.group is not None:
            partition, offset = (None, None) if letter.record is None else letter.record[1:3]
            self.highest[letter.group] = NewerRecord(letter.order, partition, offset)
