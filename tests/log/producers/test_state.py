"""Idempotence and transactions as one partition sees them: sequences, epochs,
markers, snapshots.
"""

from __future__ import annotations

import struct

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.producers import snapshot
from millstream.log.producers.snapshot import CorruptSnapshot, SnapshotEntry
from millstream.log.producers.state import Origin, ProducerState
from millstream.wire.records.batch import BatchHeader, ControlMarker, parse_header, read_marker
from millstream.wire.records.checksum import crc32c
from support.log.world import NOW_MS, batch, marker

MAX = 2**31 - 1


def header(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    transactional: bool = False,
) -> BatchHeader:
    raw = batch(
        count, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=transactional
    )
    return parse_header(raw)


class World:
    """Appends as the log does: check, then remember."""

    def __init__(self) -> None:
        self.state = ProducerState("orders-0")
        self.end = 0

    def send(
        self,
        sequence: int,
        count: int = 1,
        *,
        origin: Origin = Origin.CLIENT,
        **options: int | bool,
    ) -> tuple[int, bool]:
        """(base offset, whether it was a resend)."""
        one = header(sequence, count, **options)  # type: ignore[arg-type]
        repeated = self.state.check(one, origin)
        if repeated is not None:
            return repeated.first_offset, True
        offset = self.end
        self.state.apply(one, offset)
        self.end += count
        return offset, False

    def mark(
        self,
        *,
        commit: bool,
        producer_id: int = 7,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        version: int = 0,
    ) -> None:
        raw = marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
        one, said = parse_header(raw), read_marker(raw)
        assert said is not None
        self.state.check_marker(one, said, version)
        completed = self.state.apply_marker(one, self.end, said)
        self.end += 1
        if completed is not None:
            self.state.complete(completed)

    def refused(self, sequence: int, count: int = 1, **options: int | bool) -> ErrorCode:
        with pytest.raises(ApiError) as error:
            self.send(sequence, count, **options)
        return error.value.code


def test_a_resend_is_answered_with_the_original_offset() -> None:
    world = World()
    assert world.send(0, 3) == (0, False)
    assert world.send(3, 2) == (3, False)
    assert world.send(3, 2) == (3, True)
    assert world.send(0, 3) == (0, True)


def test_the_last_five_batches_are_remembered() -> None:
    world = World()
    for sequence in range(6):
        world.send(sequence)
    for sequence in range(1, 6):
        assert world.send(sequence) == (sequence, True)
    assert world.refused(0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_and_an_overlap_are_out_of_order() -> None:
    world = World()
    world.send(0, 3)
    assert world.refused(4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.refused(2, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.refused(0, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.send(3) == (3, False)


def test_five_in_flight_without_the_first_are_refused_until_it_comes() -> None:
    world = World()
    world.send(0)
    assert [world.refused(n) for n in (2, 3, 4, 5)] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4
    assert [world.send(n)[1] for n in (1, 2, 3, 4, 5)] == [False] * 5


def test_sequences_wrap_at_the_largest_number() -> None:
    world = World()
    world.send(MAX - 1, 2)
    assert world.send(0, 2) == (2, False)
    assert world.send(MAX - 1, 2) == (0, True)

    inside = World()
    inside.send(MAX - 1, 4)  # MAX-1, MAX, 0, 1
    assert inside.state.producers[7].last_sequence == 1
    assert inside.send(2) == (4, False)
    assert inside.send(MAX - 1, 4) == (0, True)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert World().send(99) == (0, False)


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    world = World()
    world.send(0, epoch=0)
    assert world.refused(5, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.send(0, epoch=1) == (1, False)
    assert world.refused(1, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.refused(0, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.send(0, epoch=1) == (1, True)


def test_a_failed_write_changes_nothing() -> None:
    world = World()
    world.send(0)
    world.state.check(header(1), Origin.CLIENT)  # checked, but never written
    assert world.send(1) == (1, False)


def test_a_coordinators_batches_are_checked_for_the_epoch_only() -> None:
    world = World()
    world.send(0, epoch=3)
    assert world.send(-1, epoch=3, origin=Origin.COORDINATOR) == (1, False)
    assert world.refused(-1, epoch=2, origin=Origin.COORDINATOR) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_silent_producers_expire_but_not_with_an_open_transaction() -> None:
    world = World()
    world.send(0, producer_id=1)
    world.send(0, producer_id=2, transactional=True)
    assert world.state.expire(NOW_MS + 999, 1000) == 0
    assert world.state.expire(NOW_MS + 1000, 1000) == 1
    assert set(world.state.producers) == {2}


# -- transactions


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    world = World()
    assert world.state.first_unstable_offset is None
    world.send(0, producer_id=1)
    world.send(0, 2, producer_id=2, transactional=True)
    world.send(0, producer_id=3, transactional=True)
    assert world.state.first_unstable_offset == 1
    world.mark(commit=True, producer_id=2)
    assert world.state.first_unstable_offset == 1, "the marker is not replicated yet"
    assert world.state.first_undecided_offset == 3
    world.state.on_high_watermark(5)
    assert world.state.first_unstable_offset == 3
    world.mark(commit=False, producer_id=3)
    world.state.on_high_watermark(world.end)
    assert world.state.first_unstable_offset is None


def test_a_transaction_begins_with_its_first_batch_only() -> None:
    world = World()
    world.send(0, transactional=True)
    world.send(1, transactional=True)
    assert world.state.producers[7].txn_first_offset == 0
    assert world.state.has_ongoing_transaction(7, 0)
    assert not world.state.has_ongoing_transaction(7, 1)


def test_a_batch_outside_the_open_transaction_is_refused() -> None:
    world = World()
    world.send(0, transactional=True)
    assert world.refused(1) == ErrorCode.INVALID_TXN_STATE


def test_an_old_coordinator_is_fenced() -> None:
    world = World()
    world.send(0, transactional=True)
    world.mark(commit=True, coordinator_epoch=5)
    with pytest.raises(ApiError) as fenced:
        world.mark(commit=True, coordinator_epoch=4)
    assert fenced.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_of_an_old_producer_epoch_is_refused() -> None:
    world = World()
    world.send(0, epoch=4, transactional=True)
    with pytest.raises(ApiError) as refused:
        world.mark(commit=True, epoch=3)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_with_transactions_v2_a_marker_needs_a_larger_epoch_or_repeats_one() -> None:
    world = World()
    world.send(0, epoch=4, transactional=True)
    with pytest.raises(ApiError) as refused:
        world.mark(commit=True, epoch=4, version=2)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    world.mark(commit=True, epoch=5, version=2)
    world.mark(commit=True, epoch=5, version=2)  # its answer was lost


def test_a_marker_without_data_completes_no_transaction() -> None:
    state = ProducerState("orders-0")
    raw = marker(9, 2, commit=False)
    assert state.apply_marker(parse_header(raw), 0, ControlMarker(False, 0)) is None
    assert state.producers[9].epoch == 2


def test_the_first_batch_of_a_transaction_needs_the_coordinators_word() -> None:
    world = World()
    first = header(0, transactional=True)
    guard = world.state.start_verification(7, 0, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    assert guard is not None
    with pytest.raises(ApiError) as refused:
        world.state.check_verified(first, None)
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE
    world.state.check_verified(first, guard)
    world.send(0, transactional=True)
    assert world.state.start_verification(7, 1, 0, supports_epoch_bump=False, now_ms=NOW_MS) is None
    world.state.check_verified(header(1, transactional=True), None)


def test_a_word_given_before_an_abort_is_worth_nothing_after_it() -> None:
    world = World()
    guard = world.state.start_verification(7, 0, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    world.mark(commit=False)
    with pytest.raises(ApiError) as refused:
        world.state.check_verified(header(0, transactional=True), guard)
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


def test_batch_is_out_of_order_while_an_earlier_one_is_verified() -> None:
    world = World()
    world.state.start_verification(7, 5, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    assert world.refused(6, transactional=True) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.send(5, transactional=True) == (0, False)


def test_a_v2_producer_without_state_begins_at_zero() -> None:
    world = World()
    world.state.start_verification(7, 3, 0, supports_epoch_bump=True, now_ms=NOW_MS)
    assert world.refused(3, transactional=True) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- sequences of ended transactions


@pytest.mark.parametrize("commit", [False, True], ids=["aborted", "committed"])
def test_sequences_of_ended_transaction_are_refused(commit: bool) -> None:
    """librdkafka reuses sequences after an abort; the batch must not count as a duplicate of the
    aborted one.
    """
    world = World()
    world.send(0, 5, transactional=True)
    world.mark(commit=commit)
    for sequence, count in ((0, 5), (0, 3), (0, 9), (2, 2), (4, 1), (4, 9)):
        assert world.refused(sequence, count, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert world.state.producers[7].txn_first_offset == -1, "a refused batch opened a transaction"
    assert world.refused(6, transactional=True) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.send(5, 5, transactional=True) == (6, False)


def test_sequences_before_open_transaction_are_refused() -> None:
    world = World()
    world.send(0, 5, transactional=True)
    world.mark(commit=False)
    world.send(5, 2, transactional=True)
    world.send(7, 2, transactional=True)
    for sequence, count in ((0, 5), (3, 4), (0, 9)):
        assert world.refused(sequence, count, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert world.send(5, 2, transactional=True) == (6, True)
    assert world.send(7, 2, transactional=True) == (8, True)
    assert world.refused(6, 2, transactional=True) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.send(9, transactional=True) == (10, False)


def test_retry_within_open_transaction_is_a_duplicate() -> None:
    world = World()
    for sequence in range(0, 10, 2):
        world.send(sequence, 2, transactional=True)
    for sequence in range(0, 10, 2):
        assert world.send(sequence, 2, transactional=True) == (sequence, True)
    world.send(10, 2, transactional=True)
    assert world.refused(0, 2, transactional=True) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_behind_a_refused_one_get_the_same_error() -> None:
    """The first batch waits for the coordinator; the second must not slip in as the first of the
    transaction.
    """
    world = World()
    world.send(0, 5, transactional=True)
    world.mark(commit=False)
    world.state.start_verification(7, 0, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    world.state.start_verification(7, 5, 0, supports_epoch_bump=False, now_ms=NOW_MS)
    assert world.refused(5, 5, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert world.refused(0, 5, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    world.mark(commit=False)
    assert world.send(5, 5, transactional=True) == (7, False)


def test_ended_transaction_is_remembered_across_the_sequence_wrap() -> None:
    world = World()
    world.send(MAX - 1, 4, transactional=True)  # MAX-1, MAX, 0, 1
    world.mark(commit=False)
    for sequence in (MAX - 1, MAX, 0, 1):
        assert world.refused(sequence, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert world.send(2, transactional=True) == (5, False)


def test_new_epoch_after_an_ended_transaction_starts_at_zero() -> None:
    """KIP-360: the epoch that a client gets after UNKNOWN_PRODUCER_ID. KIP-890: the epoch of the
    marker.
    """
    bumped = World()
    bumped.send(0, 5, transactional=True)
    bumped.mark(commit=False)
    assert bumped.send(0, 5, transactional=True, epoch=1) == (6, False)
    assert bumped.send(0, 5, transactional=True, epoch=1) == (6, True)

    second_version = World()
    second_version.send(0, 5, transactional=True)
    second_version.mark(commit=False, epoch=1, version=2)
    assert second_version.send(0, 5, transactional=True, epoch=1) == (6, False)
    assert second_version.send(0, 5, transactional=True, epoch=1) == (6, True)


def test_forced_abort_fences_the_epoch_and_its_sequences() -> None:
    world = World()
    world.send(0, 5, transactional=True)
    world.mark(commit=False, epoch=1)
    assert world.refused(0, 5, transactional=True) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.refused(5, 5, transactional=True) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.send(0, 5, transactional=True, epoch=1) == (6, False)


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
def test_snapshot_keeps_which_sequences_belong_to_ended_transactions(ended: bool) -> None:
    world = World()
    world.send(0, 5, transactional=True)
    world.mark(commit=False)
    world.send(5, 5, transactional=True)
    if ended:
        world.mark(commit=False)
    again = World()
    data = snapshot.encode(world.state.snapshot())
    again.state.restore(snapshot.decode(data), world.end, expired_before_ms=0)
    again.end = world.end
    for sequence, count in ((0, 5), (2, 3), (3, 4)):
        assert again.refused(sequence, count, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    if ended:
        assert again.refused(5, 5, transactional=True) == ErrorCode.UNKNOWN_PRODUCER_ID
    else:
        assert again.send(5, 5, transactional=True) == (6, True)
    assert again.send(10, transactional=True) == (again.end - 1, False)


# -- snapshots


def test_a_snapshot_restores_sequences_and_open_transactions() -> None:
    world = World()
    world.send(0, 3, producer_id=1)
    world.send(3, 2, producer_id=1)
    world.send(0, 4, producer_id=2, transactional=True)
    world.send(0, 1, producer_id=3, transactional=True)
    world.mark(commit=False, producer_id=3, coordinator_epoch=6)

    again = World()
    data = snapshot.encode(world.state.snapshot())
    again.state.restore(snapshot.decode(data), world.end, expired_before_ms=0)
    again.end = world.end

    assert list(again.state.snapshot()) == list(world.state.snapshot())
    assert again.send(3, 2, producer_id=1) == (3, True)
    assert again.send(5, producer_id=1) == (11, False)
    assert again.state.first_unstable_offset == 5
    with pytest.raises(ApiError):
        again.mark(commit=True, producer_id=3, coordinator_epoch=5)


def test_restored_snapshot_drops_expired_producers() -> None:
    entries = [
        SnapshotEntry(1, 0, 5, 10, 0, 1000, -1, -1),
        SnapshotEntry(2, 0, 5, 11, 0, 3000, -1, -1),
        SnapshotEntry(3, 0, 5, 12, 0, 1000, -1, 12),
    ]
    state = ProducerState("orders-0")
    state.restore(entries, 20, expired_before_ms=2000)
    assert set(state.producers) == {2, 3}


def test_a_restored_batch_that_wrapped_is_recognised() -> None:
    state = ProducerState("orders-0")
    state.restore([SnapshotEntry(7, 0, 1, 3, 3, NOW_MS, -1, -1)], 4, expired_before_ms=0)
    found = state.check(header(MAX - 1, 4), Origin.CLIENT)
    assert found is not None
    assert found.first_offset == 0


def test_a_snapshot_file_has_kafkas_bytes() -> None:
    entry = SnapshotEntry(5, 2, 10, 100, 3, 1_700_000_000_000, 4, -1)
    body = struct.pack(">i", 1) + struct.pack(
        ">qhiqiqiq", 5, 2, 10, 100, 3, 1_700_000_000_000, 4, -1
    )
    data = snapshot.encode([entry])
    assert data == struct.pack(">hI", 1, crc32c(body)) + body
    assert snapshot.decode(data) == [entry]


@pytest.mark.parametrize("damage", ["short", "version", "crc", "count"])
def test_damaged_snapshot_is_reported(damage: str) -> None:
    data = bytearray(snapshot.encode([SnapshotEntry(5, 2, 10, 100, 3, 1, 4, -1)]))
    if damage == "short":
        del data[5:]
    elif damage == "version":
        data[1] = 9
    elif damage == "crc":
        data[-1] ^= 1
    else:
        body = struct.pack(">i", 9) + bytes(data[10:])
        data = bytearray(struct.pack(">hI", 1, crc32c(body)) + body)
    with pytest.raises(CorruptSnapshot):
        snapshot.decode(bytes(data))
