"""What an idempotent producer is told when a batch before the one it sends has not been written.

A producer has up to five batches in flight. When one is refused for a reason that passes, those behind it must be refused as well, and not with
just any error:

* Where the log knows the producer, their sequences do not fit. Told so (OUT_OF_ORDER_SEQUENCE_NUMBER), librdkafka begins a new epoch and sends
  whatever has no answer yet again, in all partitions; what was written already is then written twice.
* Where the log does not know it, a batch with any sequence is taken, as in Kafka: what was known may have been deleted. librdkafka takes the
  acknowledgement of that batch for one of those before it, too, and the refused one is lost.

So batches behind a refused one are told what that one was told, until it comes again. The refused one may have been sent to the leader before this
one: librdkafka sends the next batch to the new leader before it has put the one that came back in front of it. So a batch that does not fit
after another broker led is refused, too; and at any time the one of a producer that is not known, if it is not its first and there are other
replicas. A client that went to one of those, and was sent on, may do the same.

Clients send again in order. A batch that comes once more without the one before it is at the head of what its producer has left, which has given the
other one up: then it is the log's to decide, as if nothing had been refused. Attempts are counted for that, and not time: a broker or a client may
have been frozen between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.control.topics import MAX_NAME
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.producers.state import comes_after
from millstream.wire.records.layout import (
    FLAGS_AT,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    PRODUCER,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
)

# So often a batch is refused that comes without the one before it.
_ATTEMPTS: Final = 2
# So long after another broker led, a batch may be missing that was sent to that one: a leader that was paused answers that much later.
HANDOVER_MS: Final = 600_000
# Whatever is older does not come any more: clients give up after two minutes.
_KEPT_MS: Final = 180_000
_LOOK_EVERY_MS: Final = 10_000
_MOST_NOTES: Final = 20_000
_producer_of: Final = PRODUCER.unpack_from
# What a producer may have sent before its first batch is acknowledged: five of a megabyte, with the smallest records there are.
BEGINNING: Final = 1 << 20


class Sent(NamedTuple):
    """A batch, as its producer counts."""

    producer_id: int
    epoch: int
    sequence: int


def sent_by(records: memoryview) -> Sent | None:
    """None where nobody counts: another format, or a producer that is not idempotent."""
    if len(records) < HEADER_SIZE or records[MAGIC_AT] != MAGIC:
        return None
    sent = Sent(*_producer_of(records, PRODUCER_ID_AT))
    return sent if sent.producer_id >= 0 else None


def is_transactional(records: memoryview) -> bool:
    """Of a batch that ``sent_by`` knows."""
    return records[FLAGS_AT] & TRANSACTIONAL != 0


# What a producer is told: the code and a word about it. Not the error itself, which would keep the records and their buffer.
Told = tuple[ErrorCode, str | None]
# Instead of that: the producer has been told often enough.
GivenUp = tuple[()]
_FROM_ELSEWHERE: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "a batch before it may be on its way from another broker",
)


class _Awaited:
    """A batch that has not been written, and the first of those behind it that came all the same."""

    __slots__ = ("attempts", "epoch", "first_behind", "leader_epoch", "sequence", "since_ms", "told")

    def __init__(self, epoch: int, sequence: int, told: Told, since_ms: int, leader_epoch: int = -1) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.told = told
        self.since_ms = since_ms
        self.leader_epoch = leader_epoch
        self.first_behind = -1
        self.attempts = 0

    def given_up(self, sequence: int) -> bool:
        """Counts this attempt of a batch behind it."""
        if self.first_behind < 0 or comes_after(self.first_behind, sequence):
            self.first_behind, self.attempts = sequence, 1
        elif sequence == self.first_behind:
            self.attempts += 1
        return self.attempts > _ATTEMPTS


# A topic by its name (or by its id, where the name is not known), a partition, a producer.
_Key = tuple[str | bytes, int, int]


class ProducerGaps:
    """Of all partitions of a broker, hosted or not, by producer."""

    __slots__ = ("_elsewhere", "_look_at_ms", "_refused", "_steady_ms", "any")

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self._look_at_ms = 0
        # The first batch that was refused here, and batches that the leader before may have refused; in the order in which they were noted.
        self._refused: dict[_Key, _Awaited] = {}
        self._elsewhere: dict[_Key, _Awaited] = {}
        self.any = False

    def refused(self, topic: str | bytes, index: int, sent: Sent, error: ApiError) -> None:
        """A batch was refused; the first of those that are in flight counts. What is refused for good does not come again."""
        if not error.code.retriable or len(topic) > MAX_NAME:
            return
        key = topic, index, sent.producer_id
        known = self._refused.get(key)
        if known is not None:
            newer = known.epoch > sent.epoch
            if newer or (known.epoch == sent.epoch and comes_after(sent.sequence, known.sequence)):
                return
        told = error.code, error.message
        self._note(self._refused, key, _Awaited(sent.epoch, sent.sequence, told, self._steady_ms()))

    def before(self, topic: str | bytes, index: int, sent: Sent, written: int) -> Told | GivenUp | None:
        """What a batch before this one was told that is not ``written``, which is the last sequence of the producer in the log (-1: none). None
        where no such batch is known."""
        key = topic, index, sent.producer_id
        known = self._refused.get(key)
        if known is None or known.epoch != sent.epoch or not comes_after(sent.sequence, known.sequence):
            return None
        there = written >= 0 and not comes_after(known.sequence, written)
        if there or known.given_up(sent.sequence):
            del self._refused[key]
            self._tell_any()
            return None if there else ()
        return known.told

    def elsewhere(self, topic: str, index: int, sent: Sent, leader_epoch: int) -> Told | None:
        """For a batch that does not fit, where another broker led: what its producer is told while the one before may still come. That is found out
        anew in every epoch of a leader."""
        key = topic, index, sent.producer_id
        known = self._elsewhere.get(key)
        if known is None and len(self._elsewhere) >= _MOST_NOTES:
            self._forget_old()
            if len(self._elsewhere) >= _MOST_NOTES:
                return None  # nobody would be told often enough if their attempts were forgotten in turn
        if known is None or (known.epoch, known.leader_epoch) != (sent.epoch, leader_epoch):
            known = _Awaited(sent.epoch, sent.sequence, _FROM_ELSEWHERE, self._steady_ms(), leader_epoch)
            self._note(self._elsewhere, key, known)
        return None if known.given_up(sent.sequence) else known.told

    def written(self, topic: str, topic_id: bytes, index: int, sent: Sent) -> None:
        """This batch is in the log, and so is what was before it: what comes next is measured by that."""
        for key in ((topic, index, sent.producer_id), (topic_id, index, sent.producer_id)):
            known = self._refused.get(key)
            if known is not None and _ends(known, sent):
                del self._refused[key]
            self._elsewhere.pop(key, None)
        self._forget_old()
        self._tell_any()

    def _note(self, notes: dict[_Key, _Awaited], key: _Key, awaited: _Awaited) -> None:
        self._forget_old()
        notes.pop(key, None)  # in its place at the end
        if len(notes) >= _MOST_NOTES:
            del notes[next(iter(notes))]
        notes[key] = awaited
        self.any = True

    def _forget_old(self) -> None:
        """As long as there are any, every append looks for its own."""
        now_ms = self._steady_ms()
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + _LOOK_EVERY_MS
        for notes in (self._refused, self._elsewhere):
            while notes:
                oldest = next(iter(notes))
                if now_ms - notes[oldest].since_ms <= _KEPT_MS:
                    break
                del notes[oldest]

    def _tell_any(self) -> None:
        self.any = bool(self._refused or self._elsewhere)


def _ends(awaited: _Awaited, sent: Sent) -> bool:
    """A repeated batch from before the one that is awaited does not."""
    if awaited.epoch != sent.epoch:
        return sent.epoch > awaited.epoch
    return not comes_after(awaited.sequence, sent.sequence)
