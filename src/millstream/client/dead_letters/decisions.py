"""Decide what a redrive does with each dead letter. Pure: no broker, no clock.

A letter is sent back, or it stays, or it is finished because its record was sent back already. Two rules protect the topic:

- **A record goes back once**, however many letters are about it. ``once`` names the record and the topic that it goes to.
- **Nothing old is written over something newer.** Records with the same key have an order: their offsets in the partition they came
  from, or their times where they go to another topic. A letter stays if its topic has a newer record of its key. Newer letters of the
  same key do not count as long as the same redrive sends them afterwards, in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, NamedTuple

from millstream.client.dead_letters.letters import DeadLetter, Identity

Timestamps = Literal["original", "now"]
MOST_EXAMPLES = 5


class Target(NamedTuple):
    """Where a record goes; no partition: the key decides."""

    topic: str
    partition: int | None


class Once(NamedTuple):
    """What is done at most once: this record to this topic."""

    to: str
    record: Identity


class Group(NamedTuple):
    """Records that replace one another: those of a key in a partition, or in a topic where the key decides on the partition."""

    target: Target
    by_offset: bool
    key: bytes


class LetterPlace(NamedTuple):
    """A position in the dead-letter topic."""

    partition: int
    offset: int


class NewerRecord(NamedTuple):
    """The newest record of a key: its place in the order of its group, and where it is."""

    order: int
    partition: int | None
    offset: int | None


@dataclass(frozen=True)
class Candidate:
    """What has to be known of a dead letter. ``order`` and ``group`` are None where no record can be overwritten."""

    at: LetterPlace
    chosen: bool
    target: Target | None = None
    record: Identity | None = None
    group: Group | None = None
    order: int = 0

    @property
    def once(self) -> Once | None:
        if self.record is None or self.target is None:
            return None
        return Once(self.target.topic, self.record)


class Outcome(Enum):
    """What becomes of a letter."""

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
    """The outcome of each letter, in the order of sending, and where to stop in each partition of the dead-letter topic."""

    outcomes: Mapping[LetterPlace, Outcome]
    ends: Mapping[int, int]
    """The offset behind the last letter that is finished. Letters behind it stay where they are."""
    examples: tuple[Withheld, ...] = ()

    def count(self, outcome: Outcome) -> int:
        return sum(found is outcome for found in self.outcomes.values())


def candidate(
    letter: DeadLetter, target: Target | None, *, chosen: bool, origin_exists: bool = True
) -> Candidate:
    """Reduce a letter to what decisions need.

    The offset of an origin that does not exist any more says nothing about the records of the topic that has its name now.
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
    """The place of a letter's record among those of its key."""
    origin, first = letter.identity, letter.first
    if by_offset and origin is not None:
        return record_order(origin, first, by_offset=True)
    timestamp_ms = letter.record.timestamp_ms if letter.timestamp_ms is None else letter.timestamp_ms
    return timestamp_ms if first is None or first.timestamp_ms is None else first.timestamp_ms


def record_order(record: Identity, first: Identity | None, *, by_offset: bool) -> int:
    """The place of a record among those of its key. One that was sent back has the place of its original."""
    if by_offset:
        same = first is not None and first[:2] == record[:2] and first.offset < record.offset
        return first.offset if same and first is not None else record.offset
    if first is not None and first.timestamp_ms is not None:
        return first.timestamp_ms
    return -1 if record.timestamp_ms is None else record.timestamp_ms


def decide(
    letters: Sequence[Candidate],
    *,
    done: Collection[Once] = (),
    newest: Mapping[Group, NewerRecord] | None = None,
    limit: int | None = None,
) -> Decisions:
    """Decide about letters in the order in which they are sent.

    ``done`` has the records that were sent back before. ``newest`` has the newest record of each key; None: overwrite whatever is
    there. Records of letters that are decided about here are not among them.
    """
    decided = _Pass(done, newest)
    sent = [index for index, letter in enumerate(letters) if decided.decide(letter) is Outcome.SENT]
    if limit is None or len(sent) <= limit:
        return decided.result()
    allowed = _first(letters, sent, limit, in_order=newest is not None)
    decided = _Pass(done, newest, {letters[index].at for index in allowed})
    for letter in letters[: max(allowed) + 1]:
        decided.decide(letter)
    return decided.result()


def _first(letters: Sequence[Candidate], sent: Sequence[int], limit: int, *, in_order: bool) -> set[int]:
    """The letters to send under a limit. One that is followed by newer ones of its key needs all of those."""
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
    done: Collection[Once]
    newest: Mapping[Group, NewerRecord] | None
    allowed: Collection[LetterPlace] | None = None
    """The letters that may be sent; None: all."""
    outcomes: dict[LetterPlace, Outcome] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    examples: list[Withheld] = field(default_factory=list)
    sent: set[Once] = field(default_factory=set)
    highest: dict[Group, NewerRecord] = field(default_factory=dict)
    """The newest record of each key that this redrive sends."""

    def decide(self, letter: Candidate) -> Outcome:
        outcome = self._outcome(letter)
        self.outcomes[letter.at] = outcome
        if outcome is Outcome.SENT:
            self._note_sent(letter)
        if outcome in (Outcome.SENT, Outcome.REPEATED):
            self.ends[letter.at.partition] = letter.at.offset + 1
        return outcome

    def result(self) -> Decisions:
        return Decisions(self.outcomes, self.ends, tuple(self.examples))

    def _outcome(self, letter: Candidate) -> Outcome:
        if not letter.chosen:
            return Outcome.FILTERED
        if letter.once is not None and (letter.once in self.sent or letter.once in self.done):
            return Outcome.REPEATED
        newer = self._newer(letter)
        if newer is not None:
            if len(self.examples) < MOST_EXAMPLES:
                self.examples.append(Withheld(letter, newer))
            return Outcome.NEWER
        if self.allowed is not None and letter.at not in self.allowed:
            return Outcome.NEWER
        return Outcome.SENT

    def _newer(self, letter: Candidate) -> NewerRecord | None:
        if self.newest is None or letter.group is None:
            return None
        for found in (self.newest.get(letter.group), self.highest.get(letter.group)):
            if found is not None and found.order > letter.order:
                return found
        return None

    def _note_sent(self, letter: Candidate) -> None:
        if letter.once is not None:
            self.sent.add(letter.once)
        if letter.group is not None:
            partition, offset = (None, None) if letter.record is None else letter.record[1:3]
            self.highest[letter.group] = NewerRecord(letter.order, partition, offset)
