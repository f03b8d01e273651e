"""Rejections of idempotent producers while an earlier batch of theirs is not written.

A producer has up to five batches in flight. If one is rejected with a retriable error, those behind
it must be rejected as well, and not with just any error:

* If the log knows the producer, their sequences do not fit. After OUT_OF_ORDER_SEQUENCE_NUMBER
  librdkafka starts a new epoch, and sends all unacknowledged batches again, in all partitions.
  Those that were written already are then duplicated.
* If the log does not know the producer, it accepts a batch with any sequence, as in Kafka: the
  producer may have expired. librdkafka takes the acknowledgement of that batch for the earlier
  ones, too, and the rejected batch is lost.

So batches behind a rejected one get the same error, until that one arrives again. It may have been
rejected by the previous leader: librdkafka sends the next batch to the new leader before it has
queued the returned one in front of it. So a batch that does not fit is also rejected after a change
of leader. With several replicas, the same goes at any time for an unknown producer's batch that is
not its first one: a client that went to the wrong replica, and was redirected, may do the same.

Clients retry in order. If a batch arrives again without its predecessor, it is the first that its
producer still has: the producer has given the other one up. Then the log decides, as if nothing had
been rejected. Attempts are counted for that, not time, because a broker or a client may have been
frozen between two of them.
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

# Number of times that a batch without its predecessor is rejected.
_ATTEMPTS: Final = 2
# How long after a change of leader a batch may be missing that was sent to the previous leader: a
# paused leader responds that much later.
HANDOVER_MS: Final = 600_000
# Older batches do not arrive any more: clients give up after two minutes.
_RETENTION_MS: Final = 180_000
_EXPIRY_INTERVAL_MS: Final = 10_000
_MAX_ENTRIES: Final = 20_000
_producer_of: Final = PRODUCER.unpack_from
# Maximum sequence that a producer may reach before its first batch is acknowledged: five batches of
# one megabyte with the smallest possible records.
BEGINNING: Final = 1 << 20


class ProducerBatch(NamedTuple):
    """The producer and the first sequence of a batch."""

    producer_id: int
    epoch: int
    sequence: int


def producer_batch(records: memoryview) -> ProducerBatch | None:
    """Return the producer of a batch; None for another format or a non-idempotent producer."""
    if len(records) < HEADER_SIZE or records[MAGIC_AT] != MAGIC:
        return None
    batch = ProducerBatch(*_producer_of(records, PRODUCER_ID_AT))
    return batch if batch.producer_id >= 0 else None


def is_transactional(records: memoryview) -> bool:
    """Return whether a batch that has a producer is part of a transaction."""
    return records[FLAGS_AT] & TRANSACTIONAL != 0


# The error for a producer: code and message. Not the exception, which would keep the records and
# their buffer alive.
Rejection = tuple[ErrorCode, str | None]
# Instead of a rejection: the producer was rejected often enough.
GivenUp = tuple[()]
_SENT_ELSEWHERE: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "an earlier batch may have been sent to another broker, and still arrive here",
)


class _MissingBatch:
    """A batch that has not been written, and the first of those behind it that arrived."""

    __slots__ = (
        "attempts",
        "epoch",
        "first_after",
        "leader_epoch",
        "rejection",
        "sequence",
        "since_ms",
    )

    def __init__(
        self, epoch: int, sequence: int, rejection: Rejection, since_ms: int, leader_epoch: int = -1
    ) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.rejection = rejection
        self.since_ms = since_ms
        self.leader_epoch = leader_epoch
        self.first_after = -1
        self.attempts = 0

    def given_up(self, sequence: int) -> bool:
        """Count an attempt of a later batch; return whether the producer has given this one up."""
        if self.first_after < 0 or comes_after(self.first_after, sequence):
            self.first_after, self.attempts = sequence, 1
        elif sequence == self.first_after:
            self.attempts += 1
        return self.attempts > _ATTEMPTS


# Topic name (or id, if the name is unknown), partition, producer id.
_Key = tuple[str | bytes, int, int]


class PendingSequences:
    """The missing batches of all partitions of a broker, hosted or not, by producer."""

    __slots__ = ("_next_expiry_ms", "_rejected", "_sent_elsewhere", "_steady_ms", "any")

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self._next_expiry_ms = 0
        # The first batch that was rejected here, and batches that the previous leader may have
        # rejected; oldest first.
        self._rejected: dict[_Key, _MissingBatch] = {}
        self._sent_elsewhere: dict[_Key, _MissingBatch] = {}
        self.any = False

    def record_rejection(
        self, topic: str | bytes, index: int, batch: ProducerBatch, error: ApiError
    ) -> None:
        """Record a rejected batch, if it is the first of those in flight.

        After an error that is not retriable, it does not arrive again.
        """
        if not error.code.retriable or len(topic) > MAX_NAME:
            return
        key = topic, index, batch.producer_id
        known = self._rejected.get(key)
        if known is not None:
            newer = known.epoch > batch.epoch
            if newer or (
                known.epoch == batch.epoch and comes_after(batch.sequence, known.sequence)
            ):
                return
        rejection = error.code, error.message
        self._add(
            self._rejected,
            key,
            _MissingBatch(batch.epoch, batch.sequence, rejection, self._steady_ms()),
        )

    def rejection_before(
        self, topic: str | bytes, index: int, batch: ProducerBatch, written: int
    ) -> Rejection | GivenUp | None:
        """Return the rejection of an earlier batch that is missing, or None if none is known.

        ``written`` is the last sequence of the producer in the log, or -1.
        """
        key = topic, index, batch.producer_id
        known = self._rejected.get(key)
        if (
            known is None
            or known.epoch != batch.epoch
            or not comes_after(batch.sequence, known.sequence)
        ):
            return None
        arrived = written >= 0 and not comes_after(known.sequence, written)
        if arrived or known.given_up(batch.sequence):
            del self._rejected[key]
            self._update_any()
            return None if arrived else ()
        return known.rejection

    def sent_elsewhere(
        self, topic: str, index: int, batch: ProducerBatch, leader_epoch: int
    ) -> Rejection | None:
        """Return the rejection of a batch that does not fit after a change of leader.

        It is None once the earlier batch will not arrive any more. Attempts are counted separately
        for each leader (``leader_epoch``).
        """
        key = topic, index, batch.producer_id
        known = self._sent_elsewhere.get(key)
        if known is None and len(self._sent_elsewhere) >= _MAX_ENTRIES:
            self._expire()
            if len(self._sent_elsewhere) >= _MAX_ENTRIES:
                # Evicting entries in turn would mean that no producer's attempts add up.
                return None
        if known is None or (known.epoch, known.leader_epoch) != (batch.epoch, leader_epoch):
            known = _MissingBatch(
                batch.epoch, batch.sequence, _SENT_ELSEWHERE, self._steady_ms(), leader_epoch
            )
            self._add(self._sent_elsewhere, key, known)
        return None if known.given_up(batch.sequence) else known.rejection

    def record_written(self, topic: str, topic_id: bytes, index: int, batch: ProducerBatch) -> None:
        """Drop the missing batches of a producer up to this batch, which is in the log."""
        for key in ((topic, index, batch.producer_id), (topic_id, index, batch.producer_id)):
            known = self._rejected.get(key)
            if known is not None and _ends_wait(known, batch):
                del self._rejected[key]
            self._sent_elsewhere.pop(key, None)
        self._expire()
        self._update_any()

    def _add(self, entries: dict[_Key, _MissingBatch], key: _Key, missing: _MissingBatch) -> None:
        self._expire()
        entries.pop(key, None)  # it moves to the end
        if len(entries) >= _MAX_ENTRIES:
            del entries[next(iter(entries))]
        entries[key] = missing
        self.any = True

    def _expire(self) -> None:
        """Drop old entries: as long as there are any, every append looks for its own."""
        now_ms = self._steady_ms()
        if now_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = now_ms + _EXPIRY_INTERVAL_MS
        for entries in (self._rejected, self._sent_elsewhere):
            while entries:
                oldest = next(iter(entries))
                if now_ms - entries[oldest].since_ms <= _RETENTION_MS:
                    break
                del entries[oldest]

    def _update_any(self) -> None:
        self.any = bool(self._rejected or self._sent_elsewhere)


def _ends_wait(missing: _MissingBatch, batch: ProducerBatch) -> bool:
    """Return whether a written batch ends the wait for a missing one.

    A repeated batch from before the missing one does not.
    """
    if missing.epoch != batch.epoch:
        return batch.epoch > missing.epoch
    return not comes_after(missing.sequence, batch.sequence)
