"""What an idempotent producer is told when a batch before the one it sends has not been written.

A producer has up to five batches in flight. When one is refused for a reason that passes, those behind it must be refused as well, and not with
just any error:

* Where the log knows the producer, their sequences do not fit. Told so (OUT_OF_ORDER_SEQUENCE_NUMBER), librdkafka begins a new epoch and sends
  whatever has no answer yet again, in all partitions; what was written already is then written twice.
* Where the log does not know it, a batch with any sequence is taken, as in Kafka: what was known may have been deleted. librdkafka takes the
  acknowledgement of that batch for one of those before it, too, and the refused one is lost.

So batches behind a refused one are told what that one was told, until it comes again. The refused one may have been sent to the leader before this
one: librdkafka sends the next batch to the new leader before it has put the one that came back in front of it. So the first batch of a
producer that does not fit here after another broker led is refused, too, for a moment: if the one before it exists, it comes now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.batch import HEADER_SIZE

# So long a producer's refused batch explains why those behind it do not fit.
_REFUSED_MS: Final = 60_000
# So long a batch is waited for that may be on its way from another leader. librdkafka sends it again after 100 ms.
_ELSEWHERE_MS: Final = 5_000
# So long after another broker led, a producer's first batch may be such a one: a leader that was paused answers that much later.
HANDOVER_MS: Final = 600_000
_LOOK_EVERY_MS: Final = 10_000
_MOST_NOTES: Final = 50_000
_MAGIC_AT: Final = 16
_PRODUCER_AT: Final = 43
_producer_of: Final = struct.Struct(">qhi").unpack_from


class Sent(NamedTuple):
    """A batch, as its producer counts."""

    producer_id: int
    epoch: int
    sequence: int


def sent_by(records: memoryview) -> Sent | None:
    """None where nobody counts: another format, or a producer that is not idempotent."""
    if len(records) < HEADER_SIZE or records[_MAGIC_AT] != 2:
        return None
    sent = Sent(*_producer_of(records, _PRODUCER_AT))
    return sent if sent.producer_id >= 0 else None


class _Refusal(NamedTuple):
    """Of a batch: why, and since when. Not the error itself, which would keep the records and their buffer."""

    epoch: int
    sequence: int
    code: ErrorCode
    message: str | None
    since_ms: int
    # Of this leader, where not the batch itself was refused but perhaps one before it, by the leader before; else -1.
    leader_epoch: int = -1

    @property
    def elsewhere(self) -> bool:
        return self.leader_epoch >= 0

    def holds(self, now_ms: int) -> bool:
        return now_ms - self.since_ms <= (_ELSEWHERE_MS if self.elsewhere else _REFUSED_MS)

    def error(self) -> ApiError:
        return ApiError(self.code, self.message)

    def explains(self, sent: Sent, now_ms: int) -> bool:
        """Why this batch is refused, too. For the batch itself that is no reason: it may be written now, unless another is waited for."""
        behind = self.sequence < sent.sequence or (self.elsewhere and self.sequence == sent.sequence)
        return behind and self.epoch == sent.epoch and self.holds(now_ms)


# A topic by its name (or by its id, where the name is not known), a partition, a producer.
_Key = tuple[str | bytes, int, int]


class ProducerGaps:
    """Of all partitions of a broker, hosted or not: by producer, the first batch that was refused a moment ago."""

    __slots__ = ("_look_at_ms", "_steady_ms", "notes")

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self._look_at_ms = 0
        # In the order in which they were made.
        self.notes: dict[_Key, _Refusal] = {}

    def refused(self, topic: str | bytes, index: int, sent: Sent, error: ApiError) -> None:
        """A batch was refused; the first of those that are in flight counts. What is refused for good does not come again."""
        if not error.code.retriable:
            return
        key, now_ms = (topic, index, sent.producer_id), self._steady_ms()
        known = self.notes.get(key)
        if known is not None and known.explains(sent, now_ms):
            return
        self._note(key, _Refusal(sent.epoch, sent.sequence, error.code, error.message, now_ms))

    def before(self, topic: str | bytes, index: int, sent: Sent) -> ApiError | None:
        """What a batch before this one was told."""
        now_ms = self._steady_ms()
        if now_ms >= self._look_at_ms:
            self._forget_old(now_ms)
        known = self.notes.get((topic, index, sent.producer_id))
        return known.error() if known is not None and known.explains(sent, now_ms) else None

    def perhaps_elsewhere(self, topic: str, index: int, sent: Sent, leader_epoch: int) -> ApiError | None:
        """For a batch that does not fit, where another broker led: what to tell its producer while the one before may still come. It is waited for
        anew in every epoch of a leader."""
        key, now_ms = (topic, index, sent.producer_id), self._steady_ms()
        known = self.notes.get(key)
        waited = known is not None and (known.leader_epoch, known.epoch) == (leader_epoch, sent.epoch)
        if known is None or not waited or known.sequence > sent.sequence:
            known = _Refusal(
                sent.epoch,
                sent.sequence,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "a batch before it may be on its way from the leader before",
                now_ms,
                leader_epoch,
            )
            self._note(key, known)
        return known.error() if known.holds(now_ms) else None

    def written(self, topic: str, topic_id: bytes, index: int, producer_id: int) -> None:
        """A batch of this producer is in the log: whatever comes next is measured by that."""
        self.notes.pop((topic, index, producer_id), None)
        self.notes.pop((topic_id, index, producer_id), None)

    def _note(self, key: _Key, refusal: _Refusal) -> None:
        self.notes.pop(key, None)  # in its place at the end
        if len(self.notes) >= _MOST_NOTES:
            del self.notes[next(iter(self.notes))]
        self.notes[key] = refusal

    def _forget_old(self, now_ms: int) -> None:
        """As long as there are any, every append looks for its own."""
        self._look_at_ms = now_ms + _LOOK_EVERY_MS
        self.notes = {key: one for key, one in self.notes.items() if now_ms - one.since_ms <= _REFUSED_MS}
