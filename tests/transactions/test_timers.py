"""Transactions that take too long, and transactional ids that nobody uses any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.core.decisions import NOTHING, Arm, Decision, Disarm, Reply
from millstream.transactions.effects import AllocateProducerId, RememberEpoch, TimeoutContinuation
from millstream.transactions.metadata import NO_TIMEOUT_MS
from millstream.transactions.records import tombstone_of
from millstream.transactions.states import TransactionState
from millstream.transactions.timers import EXPIRY, deadline_key
from millstream.wire.messages.end_txn import EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdResponse
from support.transactions.samples import (
    CLASSIC_SETTINGS,
    EARLIER_MS,
    EPOCH,
    ID,
    LAST_EPOCH,
    NOW_MS,
    PID,
    SETTINGS,
    TIMEOUT_MS,
    S,
    answered,
    end,
    init,
    markers,
    metadata,
    record,
    shard,
)

KEY = deadline_key(ID)
LATE_MS = EARLIER_MS + TIMEOUT_MS + 1
WEEK_MS = 7 * 24 * 3600 * 1000


def test_an_overdue_transaction_is_aborted_under_a_bumped_epoch() -> None:
    decision = shard(metadata(S.ONGOING)).decide_timeout(KEY, now_ms=LATE_MS)
    aborted = metadata(
        S.PREPARE_ABORT,
        producer_epoch=EPOCH + 1,
        last_update_ms=LATE_MS,
        client_transaction_version=2,
    )
    assert decision == Decision(
        (record(aborted),),
        (
            RememberEpoch(ID, EPOCH),
            Disarm(KEY),
            markers(False, producer_epoch=EPOCH + 1, transaction_version=2),
        ),
    )


def test_before_transaction_version_2_too() -> None:
    decision = shard(metadata(S.ONGOING), CLASSIC_SETTINGS).decide_timeout(KEY, now_ms=LATE_MS)
    assert decision == Decision(
        (record(metadata(S.PREPARE_ABORT, producer_epoch=EPOCH + 1, last_update_ms=LATE_MS)),),
        (RememberEpoch(ID, -1), Disarm(KEY), markers(False, producer_epoch=EPOCH + 1)),
    )


def test_a_timer_that_comes_early_is_set_again() -> None:
    decision = shard(metadata(S.ONGOING)).decide_timeout(KEY, now_ms=LATE_MS - 1)
    assert decision == Decision(effects=(Arm(KEY, 1_000_060_000),))


def test_a_start_by_a_clock_ahead_of_ours_puts_the_deadline_off_by_no_more_than_the_timeout() -> (
    None
):
    """A coordinator that took over from a broker whose clock was a quarter of an hour ahead of its
    own.
    """
    moved = shard(metadata(S.ONGOING, start_ms=NOW_MS + 900_000))
    loaded = moved.on_loaded(now_ms=NOW_MS)
    fires_ms = NOW_MS + TIMEOUT_MS + 10_000
    assert Arm(KEY, fires_ms) in loaded.effects and not loaded.records
    (aborting,) = moved.decide_timeout(KEY, now_ms=fires_ms).records
    assert aborting.value.transaction_status == S.PREPARE_ABORT.value


def test_a_start_by_a_clock_that_is_a_little_ahead_gets_the_whole_of_its_timeout() -> None:
    moved = shard(metadata(S.ONGOING, start_ms=NOW_MS + 30_000))
    assert Arm(KEY, NOW_MS + TIMEOUT_MS + 10_000) in moved.on_loaded(now_ms=NOW_MS).effects
    decision = moved.decide_timeout(KEY, now_ms=NOW_MS + TIMEOUT_MS + 10_000)
    assert decision == Decision(effects=(Arm(KEY, NOW_MS + 30_000 + TIMEOUT_MS + 10_000),))


def test_a_clock_that_was_set_back_meanwhile_does_not_keep_a_transaction_open() -> None:
    (aborting,) = (
        shard(metadata(S.ONGOING)).decide_timeout(KEY, now_ms=EARLIER_MS - 3_600_000).records
    )
    assert aborting.value.transaction_status == S.PREPARE_ABORT.value


@pytest.mark.parametrize("state", set(S) - {S.ONGOING, S.DEAD, S.PREPARE_EPOCH_FENCE})
def test_only_an_open_transaction_times_out(state: TransactionState) -> None:
    assert shard(metadata(state)).decide_timeout(KEY, now_ms=NOW_MS + WEEK_MS) == NOTHING


def test_a_transaction_of_an_outer_coordinator_never_times_out() -> None:
    endless = shard(metadata(S.ONGOING, timeout_ms=NO_TIMEOUT_MS))
    assert endless.decide_timeout(KEY, now_ms=NOW_MS + 10**12) == NOTHING


def test_the_timer_of_a_forgotten_id_means_nothing() -> None:
    assert shard().decide_timeout(KEY, now_ms=NOW_MS) == NOTHING


def test_the_timeout_of_the_last_epoch_waits_for_a_producer_id() -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    waiting = worn.decide_timeout(KEY, now_ms=LATE_MS)
    again = Arm(KEY, (LATE_MS // 10_000 + 1) * 10_000)
    assert waiting == Decision(effects=(again, AllocateProducerId(TimeoutContinuation(ID))))
    aborted = metadata(
        S.PREPARE_ABORT,
        producer_epoch=LAST_EPOCH + 1,
        next_producer_id=100,
        last_update_ms=LATE_MS,
        client_transaction_version=2,
    )
    decision = worn.decide_producer_id(TimeoutContinuation(ID), 100, now_ms=LATE_MS)
    assert decision == Decision(
        (record(aborted),),
        (
            RememberEpoch(ID, LAST_EPOCH),
            Disarm(KEY),
            markers(False, producer_epoch=LAST_EPOCH + 1, transaction_version=2),
        ),
    )


def test_after_a_timeout_that_rolled_over_the_client_goes_on_under_the_fresh_id() -> None:
    """Whether it aborts what has timed out, or begins again by the name it knows."""
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    aborting = worn.decide_producer_id(TimeoutContinuation(ID), 100, now_ms=LATE_MS)
    worn.perform(aborting.effects[0])
    worn.apply(aborting.records[0])
    worn.apply(worn.decide_markers_written(ID, PID, LAST_EPOCH + 1, now_ms=LATE_MS).records[0])
    abort = worn.decide_end_txn(end(False, producer_epoch=LAST_EPOCH), 5, "waiter", now_ms=LATE_MS)
    assert abort == answered(EndTxnResponse(producer_id=100, producer_epoch=0))
    again = worn.decide_init_producer_id(
        init(producer_id=PID, producer_epoch=LAST_EPOCH), 5, "waiter", now_ms=LATE_MS
    )
    reply = InitProducerIdResponse(producer_id=100, producer_epoch=0)
    assert again.effects == (RememberEpoch(ID, LAST_EPOCH), Reply("waiter", reply))


def test_without_a_producer_id_the_timer_that_was_set_again_decides() -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    assert worn.decide_producer_id(TimeoutContinuation(ID), None, now_ms=LATE_MS) == NOTHING


def test_a_transaction_that_ended_meanwhile_is_left_alone() -> None:
    world = shard(metadata(S.COMPLETE_COMMIT))
    assert world.decide_producer_id(TimeoutContinuation(ID), 100, now_ms=LATE_MS) == NOTHING


# ---- expiry ----


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_id_that_was_not_used_for_a_week_is_forgotten(state: TransactionState) -> None:
    world = shard(metadata(state))
    decision = world.decide_timeout(EXPIRY, now_ms=EARLIER_MS + WEEK_MS)
    assert decision == Decision((tombstone_of(ID),), (RememberEpoch(ID, -1),))
    world.apply(decision.records[0])
    assert world.durable == {}


def test_a_day_before_that_it_is_not() -> None:
    at_ms = EARLIER_MS + WEEK_MS - 1
    decision = shard(metadata()).decide_timeout(EXPIRY, now_ms=at_ms)
    assert decision == Decision(effects=(Arm(EXPIRY, (at_ms // 3_600_000 + 1) * 3_600_000),))


@pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_an_id_in_use_never_expires(state: TransactionState) -> None:
    assert shard(metadata(state)).decide_timeout(EXPIRY, now_ms=NOW_MS + 10 * WEEK_MS).records == ()


def test_many_ids_expire_in_several_batches() -> None:
    world = shard()
    names = [f"{n:04}" + "x" * 400 for n in range(300)]
    for name in names:
        world.apply(record(metadata(), name))
    forgotten = []
    now_ms = NOW_MS + WEEK_MS
    decision = world.decide_timeout(EXPIRY, now_ms=now_ms)
    assert decision.effects[-1] == Arm(EXPIRY, now_ms)
    while decision.records:
        forgotten.append(len(decision.records))
        for one in decision.records:
            world.apply(one)
        decision = world.decide_timeout(EXPIRY, now_ms=now_ms)
    assert sum(forgotten) == len(names) and len(forgotten) > 1
    assert decision == NOTHING


def test_settings_decide_when() -> None:
    quick = replace(SETTINGS, transaction_abort_timed_out_transaction_cleanup_interval_ms=1)
    decision = shard(metadata(S.ONGOING), quick).decide_timeout(KEY, now_ms=NOW_MS)
    assert decision == Decision(effects=(Arm(KEY, LATE_MS),))
