"""The producers of a partition: sequences of idempotent ones, open transactions, unstable offsets.

A produce is checked before it is written (`check`) and recorded after (`apply`), so that a failed
write changes nothing. Replicated batches are applied without the checks: their leader made them.
Times come from the batches.

A sequence identifies a batch only within its transaction. librdkafka aborts a transaction without
waiting for the batch that it is retrying, and gives the first batch of the next transaction the
same sequence in the same epoch. If the log already has the aborted batch, the new one looks like
its duplicate: acknowledged as such, its records would be missing from the commit. So a
transactional batch is a duplicate only of a batch of the open transaction. A batch that reuses
sequences of an ended transaction is rejected with UNKNOWN_PRODUCER_ID, on which clients abort and
raise their epoch (KIP-360). It is not appended, because it may also be a late copy of the aborted
batch. Transactions v2 are not affected: each ends with a new epoch (KIP-890).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.producers.snapshot import SnapshotEntry
from millstream.wire.records.batch import BatchHeader, ControlMarker
from millstream.wire.records.layout import TRANSACTIONAL

logger = logging.getLogger("millstream.log.producer_state")

BATCHES_TO_RETAIN: Final = 5
_MAX_SEQUENCE: Final = 0x7FFFFFFF
_MAX_EPOCH: Final = 0x7FFF
_NO_EPOCH: Final = -1
_SEQUENCES: Final = _MAX_SEQUENCE + 1


def comes_after(sequence: int, other: int) -> bool:
    """Compare two sequences of one producer, which start again at 0 after the largest."""
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2


class Origin(IntEnum):
    """The origin of an append, which decides how much is checked."""

    REPLICATION = 0
    COORDINATOR = 1
    CLIENT = 2


class BatchMeta(NamedTuple):
    """A recent batch, to recognise a resend."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Verification:
    """A transaction whose first write waits for the coordinator (KIP-890); guards an append."""

    __slots__ = ("epoch", "lowest_sequence", "started_ms", "supports_epoch_bump")

    def __init__(
        self, started_ms: int, sequence: int, epoch: int, supports_epoch_bump: bool
    ) -> None:
        self.started_ms = started_ms
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump

    def note(self, sequence: int, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class ProducerEntry:
    """One producer id: its epoch, its last batches, its open transaction."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "txn_first_offset")

    def __init__(self, epoch: int = _NO_EPOCH) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = -1
        self.batches: list[BatchMeta] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """The last offset of its last data batch; -1 if unknown."""
        return self.batches[-1].last_offset if self.batches else -1

    def find_duplicate(
        self, epoch: int, first_sequence: int, last_sequence: int, first_offset: int = 0
    ) -> BatchMeta | None:
        """Return the recent batch at or after `first_offset` that has these sequences."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                    return batch if batch.first_offset >= first_offset else None
        return None

    def in_ended_transaction(self, epoch: int, sequence: int) -> bool:
        """Return whether a transactional batch reuses a sequence from before the open transaction.

        Without an open transaction, that is every sequence up to the last. Only the last batches
        are kept. If the first batch of the open transaction is not among them, a sequence before
        the oldest one is not known to be older.
        """
        if epoch != self.epoch or not self.batches:
            return False
        if self.txn_first_offset < 0:
            return not comes_after(sequence, self.batches[-1].last_sequence)
        for batch in self.batches:
            if batch.first_offset == self.txn_first_offset:
                return comes_after(batch.first_sequence, sequence)
        return False

    def ended_right_before(self, epoch: int, sequence: int) -> int:
        """Return the last offset of the ended transaction whose sequences a batch would continue.

        The batch would open the next transaction. -1 if it does not continue one.
        """
        if epoch != self.epoch or self.txn_first_offset >= 0:
            return -1
        return self.last_offset if sequence == (self.last_sequence + 1) % _SEQUENCES else -1

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


def _saved(producer_id: int, entry: ProducerEntry) -> SnapshotEntry:
    last = entry.batches[-1] if entry.batches else BatchMeta(-1, -1, -1, -1, -1)
    return SnapshotEntry(
        producer_id,
        entry.epoch,
        last.last_sequence,
        last.last_offset,
        last.last_offset - last.first_offset,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


_UNKNOWN: Final = ProducerEntry()


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_ongoing", "_unreplicated", "_verifications", "end_offset", "name", "producers")

    def __init__(self, name: str, end_offset: int = 0) -> None:
        self.name = name
        self.end_offset = end_offset  # the state reflects every batch below
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[
            int, int
        ] = {}  # first offset -> producer id, in order of the first offset
        self._unreplicated: dict[
            int, int
        ] = {}  # first offset -> offset of a marker above the high watermark
        self._verifications: dict[int, Verification] = {}

    # -- queries

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the oldest transaction that is open, or decided above the high watermark."""
        if not self._ongoing and not self._unreplicated:
            return None
        ongoing = next(iter(self._ongoing), None)
        decided = min(self._unreplicated, default=None)
        if ongoing is None or decided is None:
            return decided if ongoing is None else ongoing
        return min(ongoing, decided)

    @property
    def first_undecided_offset(self) -> int | None:
        return next(iter(self._ongoing), None)

    def has_ongoing_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self.producers.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch

    def knows(self, producer_id: int) -> bool:
        """Return whether the sequences of a producer's batches are checked."""
        return self.producers.get(producer_id, _UNKNOWN).epoch != _NO_EPOCH

    def last_sequence(self, producer_id: int, epoch: int) -> int:
        """Return the sequence of a producer's last batch; -1 if none of this epoch is known."""
        entry = self.producers.get(producer_id, _UNKNOWN)
        return entry.last_sequence if entry.epoch == epoch else -1

    def late_transaction(self, now_ms: int, max_transaction_timeout_ms: int) -> bool:
        """Return whether the oldest open transaction should have ended long ago (KIP-664)."""
        first = next(iter(self._ongoing.values()), None)
        entry = self.producers.get(first) if first is not None else None
        return (
            entry is not None
            and 0 < entry.last_timestamp < now_ms - max_transaction_timeout_ms - 300_000
        )

    # -- transaction verification

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        """Return the guard for an append that the coordinator must confirm first.

        None if the transaction is already known.
        """
        entry = self.producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _stale_epoch(self.name, producer_id, epoch, entry.epoch)
        if self.has_ongoing_transaction(producer_id, epoch):
            return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = Verification(now_ms, sequence, epoch, supports_epoch_bump)
            self._verifications[producer_id] = verification
        verification.note(sequence, epoch)
        return verification

    def verified(self, producer_id: int, guard: Verification | None) -> bool:
        return guard is not None and self._verifications.get(producer_id) is guard

    # -- checking a produce

    def check(self, header: BatchHeader, origin: Origin) -> BatchMeta | None:
        """Check a produce. Raises ApiError. Return the batch that a resend repeats, or None."""
        entry = self.producers.get(header.producer_id, _UNKNOWN)
        if origin is Origin.CLIENT and entry.batches:
            duplicate = self._find_duplicate(header, entry)
            if duplicate is not None:
                return duplicate
        if header.producer_epoch < entry.epoch:
            raise _stale_epoch(self.name, header.producer_id, header.producer_epoch, entry.epoch)
        if origin is Origin.CLIENT:
            self._check_sequence(header, entry)
        if entry.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction in {self.name}, but this batch"
                " is not transactional",
            )
        return None

    def _find_duplicate(self, header: BatchHeader, entry: ProducerEntry) -> BatchMeta | None:
        epoch, first, last = header.producer_epoch, header.base_sequence, header.last_sequence
        if not header.attributes & TRANSACTIONAL:
            return entry.find_duplicate(epoch, first, last)
        if entry.in_ended_transaction(epoch, first):
            raise _ended(self.name, header, f"sequence {first}")
        if entry.txn_first_offset < 0:
            return None
        return entry.find_duplicate(epoch, first, last, entry.txn_first_offset)

    def check_verified(self, header: BatchHeader, guard: Verification | None) -> None:
        """Check that the coordinator confirmed the first batch of a transaction (KIP-890)."""
        if self.has_ongoing_transaction(header.producer_id, header.producer_epoch):
            return
        entry = self.producers.get(header.producer_id, _UNKNOWN)
        if header.producer_epoch < entry.epoch:
            raise _stale_epoch(self.name, header.producer_id, header.producer_epoch, entry.epoch)
        if not self.verified(header.producer_id, guard):
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                "the batch is not part of an ongoing transaction of its producer",
            )

    def _check_sequence(self, header: BatchHeader, entry: ProducerEntry) -> None:
        first = header.base_sequence
        if self._verifications:
            self._check_against_verification(header, entry)
        if header.producer_epoch != entry.epoch:
            if first != 0 and entry.epoch != _NO_EPOCH:
                raise _out_of_order(
                    self.name, header, f"the first of epoch {header.producer_epoch} must be 0"
                )
            return
        if entry.epoch == _NO_EPOCH:
            return
        last = entry.last_sequence
        if first != last + 1 and not (first == 0 and last == _MAX_SEQUENCE):
            raise _out_of_order(self.name, header, f"the last was {last}")

    def _check_against_verification(self, header: BatchHeader, entry: ProducerEntry) -> None:
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        if verification.supports_epoch_bump and header.base_sequence != 0 and not entry.batches:
            raise _out_of_order(self.name, header, "the producer is unknown, so it must be 0")
        lowest = verification.lowest_sequence
        if header.base_sequence > lowest:
            if entry.in_ended_transaction(verification.epoch, lowest):
                # The previous batch is rejected for that. Clients expect the same error for those
                # behind it.
                raise _ended(
                    self.name, header, f"sequence {lowest}, sent before {header.base_sequence},"
                )
            raise _out_of_order(self.name, header, f"an earlier one, {lowest}, is in flight")

    def check_marker(
        self, header: BatchHeader, marker: ControlMarker, transaction_version: int
    ) -> None:
        """Check a marker of a coordinator. Raises ApiError.

        With transactions v2 the epoch must have grown (KIP-1228).
        """
        entry = self.producers.get(header.producer_id, _UNKNOWN)
        epoch = header.producer_epoch
        if epoch < entry.epoch or (transaction_version >= 2 and epoch == entry.epoch):
            repeated = epoch == entry.epoch and (entry.txn_first_offset < 0 or epoch == _MAX_EPOCH)
            if not repeated:
                raise _stale_epoch(self.name, header.producer_id, epoch, entry.epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} for producer {header.producer_id}"
                f" in {self.name} is older than its last, {entry.coordinator_epoch}",
            )

    # -- recording writes

    def apply(self, header: BatchHeader, base_offset: int) -> None:
        """Record a data batch that was written at this offset."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.set_epoch(header.producer_epoch)
        batches = entry.batches
        if len(batches) == BATCHES_TO_RETAIN:
            del batches[0]
        last_offset = base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        batches.append(
            BatchMeta(
                header.base_sequence, header.last_sequence, base_offset, last_offset, timestamp
            )
        )
        entry.last_timestamp = timestamp
        if header.attributes & TRANSACTIONAL:
            if entry.txn_first_offset < 0:
                entry.txn_first_offset = base_offset
                self._ongoing[base_offset] = header.producer_id
            self._verifications.pop(header.producer_id, None)

    def apply_marker(
        self, header: BatchHeader, base_offset: int, marker: ControlMarker
    ) -> CompletedTransaction | None:
        """Record a marker that was written. Return the transaction it ended, if that had data.

        The caller passes it to `complete`.
        """
        entry = self.producers.setdefault(header.producer_id, ProducerEntry(header.producer_epoch))
        completed = None
        if entry.txn_first_offset >= 0:
            completed = CompletedTransaction(
                header.producer_id, entry.txn_first_offset, base_offset, not marker.commit
            )
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.txn_first_offset = -1
        entry.last_timestamp = header.max_timestamp
        verification = self._verifications.get(header.producer_id)
        # With transactions v2 the guard may already belong to the next transaction, which has the
        # epoch of the marker.
        if verification and not (
            verification.supports_epoch_bump and verification.epoch == header.producer_epoch
        ):
            del self._verifications[header.producer_id]
        return completed

    def stable_offset_without(self, producer_id: int, otherwise: int) -> int:
        """Return the last stable offset once this producer's transaction is complete.

        For the transaction index.
        """
        for first_offset, owner in self._ongoing.items():
            if owner != producer_id:
                return first_offset
        return otherwise

    def complete(self, completed: CompletedTransaction) -> None:
        """Complete a transaction. It stays unstable until the high watermark passes its marker."""
        self._ongoing.pop(completed.first_offset, None)
        self._unreplicated[completed.first_offset] = completed.last_offset

    def on_high_watermark(self, offset: int) -> None:
        """Drop the decided transactions whose markers are now replicated."""
        if self._unreplicated:
            self._unreplicated = {
                first: marker for first, marker in self._unreplicated.items() if marker >= offset
            }

    # -- expiry, saving and restoring

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Expire producers that have been silent for too long. Return their number."""
        bound = now_ms - expiration_ms
        expired = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.txn_first_offset < 0 and entry.last_timestamp <= bound
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        for producer_id in [p for p, v in self._verifications.items() if v.started_ms <= bound]:
            del self._verifications[producer_id]
        return len(expired)

    def clear(self, end_offset: int) -> None:
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._verifications.clear()
        self.end_offset = end_offset

    def snapshot(self) -> Iterator[SnapshotEntry]:
        for producer_id, entry in self.producers.items():
            yield _saved(producer_id, entry)

    def saved(self, producer_id: int) -> SnapshotEntry | None:
        """Return one producer as a snapshot has it, or None if it is unknown."""
        entry = self.producers.get(producer_id)
        return None if entry is None else _saved(producer_id, entry)

    def restore(
        self, entries: Iterable[SnapshotEntry], end_offset: int, *, expired_before_ms: int
    ) -> None:
        """Replace everything by a snapshot, without the producers that have expired since."""
        self.clear(end_offset)
        for saved in entries:
            if saved.current_txn_first_offset < 0 and saved.timestamp <= expired_before_ms:
                continue
            entry = self.producers[saved.producer_id] = ProducerEntry(saved.producer_epoch)
            entry.coordinator_epoch = saved.coordinator_epoch
            entry.last_timestamp = saved.timestamp
            entry.txn_first_offset = saved.current_txn_first_offset
            if saved.last_offset >= 0:
                first_sequence = (saved.last_sequence - saved.offset_delta) & _MAX_SEQUENCE
                first_offset = saved.last_offset - saved.offset_delta
                entry.batches.append(
                    BatchMeta(
                        first_sequence,
                        saved.last_sequence,
                        first_offset,
                        saved.last_offset,
                        saved.timestamp,
                    )
                )
        open_transactions = (
            (e.txn_first_offset, p) for p, e in self.producers.items() if e.txn_first_offset >= 0
        )
        self._ongoing.update(sorted(open_transactions))


def _out_of_order(name: str, header: BatchHeader, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sequence {header.base_sequence} of producer {header.producer_id} in {name}: {reason}",
    )


def _ended(name: str, header: BatchHeader, which: str) -> ApiError:
    return ApiError(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        f"{which} of producer {header.producer_id}, epoch {header.producer_epoch}, belongs to a"
        f" transaction that has ended in {name}; abort this transaction and get a new epoch",
    )


def _stale_epoch(name: str, producer_id: int, epoch: int, current: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {epoch} of producer {producer_id} in {name} is older than its last, {current}",
    )
