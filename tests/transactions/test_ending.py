"""EndTxn by both protocols, markers, completion after a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.core.decisions import NOTHING, Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.transactions.effects import AllocateProducerId, EndContinuation, RememberEpoch
from millstream.transactions.records import record_of
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard import TransactionShard
from millstream.transactions.states import TransactionState
from millstream.transactions.timers import EXPIRY, deadline_key
from millstream.wire.messages.end_txn import EndTxnResponse
from support.transactions.samples import (
    COORDINATOR_EPOCH,
    EPOCH,
    ID,
    LAST_EPOCH,
    NOW_MS,
    PID,
    SETTINGS,
    S,
    answered,
    end,
    markers,
    metadata,
    record,
    shard,
)

FRESH = 100
OLD_SETTINGS = TransactionSettings(transaction_version=0)
DONE = EndTxnResponse()
PREPARED = {True: S.PREPARE_COMMIT, False: S.PREPARE_ABORT}
COMPLETED = {True: S.COMPLETE_COMMIT, False: S.COMPLETE_ABORT}
outcomes = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
STOP = Disarm(deadline_key(ID))


@outcomes
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_classic_end_is_answered_once_it_is_durable_and_keeps_the_epoch(
    commit: bool, version: int
) -> None:
    decision = shard(metadata(S.ONGOING)).decide_end_txn(
        end(commit), version, "waiter", now_ms=NOW_MS
    )
    assert decision == Decision(
        (record(metadata(PREPARED[commit], last_update_ms=NOW_MS)),),
        (STOP, Reply("waiter", DONE), markers(commit)),
    )


@outcomes
def test_an_end_of_version_2_bumps_the_epoch_and_answers_with_it(commit: bool) -> None:
    decision = shard(metadata(S.ONGOING)).decide_end_txn(end(commit), 5, "waiter", now_ms=NOW_MS)
    prepared = metadata(
        PREPARED[commit],
        producer_epoch=EPOCH + 1,
        last_update_ms=NOW_MS,
        client_transaction_version=2,
    )
    assert decision == Decision(
        (record(prepared),),
        (
            RememberEpoch(ID, EPOCH),
            STOP,
            Reply("waiter", EndTxnResponse(producer_id=PID, producer_epoch=EPOCH + 1)),
            markers(commit, producer_epoch=EPOCH + 1, transaction_version=2),
        ),
    )


@outcomes
def test_written_markers_complete_the_transaction(commit: bool) -> None:
    world = shard(metadata(PREPARED[commit]))
    decision = world.decide_markers_written(ID, PID, EPOCH, now_ms=NOW_MS)
    assert decision == Decision((record(metadata(COMPLETED[commit], last_update_ms=NOW_MS)),))


@pytest.mark.parametrize(
    ("state", "written"),
    [
        (S.PREPARE_COMMIT, (ID, PID, EPOCH - 1)),
        (S.PREPARE_COMMIT, (ID, PID + 1, EPOCH)),
        (S.PREPARE_COMMIT, ("other", PID, EPOCH)),
        (S.ONGOING, (ID, PID, EPOCH)),
        (S.COMPLETE_COMMIT, (ID, PID, EPOCH)),
        (S.EMPTY, (ID, PID, EPOCH)),
    ],
)
def test_markers_of_another_time_complete_nothing(
    state: TransactionState, written: tuple[str, int, int]
) -> None:
    assert shard(metadata(state)).decide_markers_written(*written, now_ms=NOW_MS) == NOTHING


# ---- version 2: retries, ends of nothing ----


@outcomes
def test_the_retry_of_an_end_answers_success_with_the_bumped_epoch(commit: bool) -> None:
    world = shard(
        metadata(COMPLETED[commit], producer_epoch=EPOCH + 1, client_transaction_version=2)
    )
    decision = world.decide_end_txn(end(commit), 5, "waiter", now_ms=NOW_MS)
    assert decision == answered(EndTxnResponse(producer_id=PID, producer_epoch=EPOCH + 1))


def test_a_retry_works_with_a_coordinator_that_took_over() -> None:
    old = shard(metadata(S.ONGOING))
    prepare = old.decide_end_txn(end(True), 5, "waiter", now_ms=NOW_MS).records[0]
    successor = TransactionShard(COORDINATOR_EPOCH + 1, SETTINGS)
    successor.apply(prepare)
    busy = successor.decide_end_txn(end(True), 5, "waiter", now_ms=NOW_MS)
    assert busy == answered(EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS))
    successor.apply(successor.decide_markers_written(ID, PID, EPOCH + 1, now_ms=NOW_MS).records[0])
    done = successor.decide_end_txn(end(True), 5, "waiter", now_ms=NOW_MS)
    assert done == answered(EndTxnResponse(producer_id=PID, producer_epoch=EPOCH + 1))


@pytest.mark.parametrize(
    "lowered_first", [True, False], ids=["before-the-end", "before-the-markers"]
)
@outcomes
def test_a_retry_is_known_though_transaction_version_was_lowered(
    commit: bool, lowered_first: bool
) -> None:
    """Kafka goes by the version of the request, not by what is finalized."""
    world = shard(metadata(S.ONGOING), OLD_SETTINGS if lowered_first else SETTINGS)
    world.apply(world.decide_end_txn(end(commit), 5, "waiter", now_ms=NOW_MS).records[0])
    lowered = shard(settings=OLD_SETTINGS)
    for known in world.durable.values():
        lowered.apply(record_of(ID, known, 0))
    lowered.apply(lowered.decide_markers_written(ID, PID, EPOCH + 1, now_ms=NOW_MS).records[0])
    again = lowered.decide_end_txn(end(commit), 5, "waiter", now_ms=NOW_MS)
    assert again == answered(EndTxnResponse(producer_id=PID, producer_epoch=EPOCH + 1))
    opposite = lowered.decide_end_txn(end(not commit), 5, "waiter", now_ms=NOW_MS)
    assert opposite == answered(EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))


def test_a_retry_across_a_roll_over_is_known_though_transaction_version_was_lowered() -> None:
    world = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH), OLD_SETTINGS)
    asked = world.decide_end_txn(end(True, producer_epoch=LAST_EPOCH), 5, "waiter", now_ms=NOW_MS)
    assert isinstance(asked.effects[0], AllocateProducerId)
    world.apply(
        world.decide_producer_id(asked.effects[0].continuation, FRESH, now_ms=NOW_MS).records[0]
    )
    world.apply(world.decide_markers_written(ID, PID, LAST_EPOCH + 1, now_ms=NOW_MS).records[0])
    again = world.decide_end_txn(end(True, producer_epoch=LAST_EPOCH), 5, "waiter", now_ms=NOW_MS)
    assert again == answered(EndTxnResponse(producer_id=FRESH, producer_epoch=0))


def test_after_the_end_of_a_classic_client_the_epoch_before_is_a_zombies() -> None:
    world = shard(metadata(S.ONGOING), OLD_SETTINGS)
    world.apply(world.decide_end_txn(end(True), 4, "waiter", now_ms=NOW_MS).records[0])
    world.apply(world.decide_markers_written(ID, PID, EPOCH, now_ms=NOW_MS).records[0])
    zombie = world.decide_end_txn(end(True, producer_epoch=EPOCH - 1), 5, "waiter", now_ms=NOW_MS)
    assert zombie == answered(EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_abort_of_nothing_takes_an_epoch_and_no_markers(state: TransactionState) -> None:
    """The client cannot know whether its first produce arrived (KIP-890)."""
    decision = shard(metadata(state)).decide_end_txn(end(False), 5, "waiter", now_ms=NOW_MS)
    prepared = metadata(
        S.PREPARE_ABORT,
        producer_epoch=EPOCH + 1,
        partitions=frozenset(),
        start_ms=NOW_MS,
        last_update_ms=NOW_MS,
        client_transaction_version=2,
    )
    assert decision == Decision(
        (record(prepared), record(replace(prepared, state=S.COMPLETE_ABORT))),
        (
            RememberEpoch(ID, EPOCH),
            Reply("waiter", EndTxnResponse(producer_id=PID, producer_epoch=EPOCH + 1)),
        ),
    )


def test_the_abort_of_a_timed_out_transaction_succeeds_and_its_commit_does_not() -> None:
    """The coordinator aborted under the next epoch: what the client wants to hear, or the opposite
    of it.
    """
    world = shard(metadata(S.ONGOING))
    timed_out = world.decide_timeout(deadline_key(ID), now_ms=NOW_MS + 10**6)
    world.apply(timed_out.records[0])
    world.apply(world.decide_markers_written(ID, PID, EPOCH + 1, now_ms=NOW_MS).records[0])
    aborted = world.decide_end_txn(end(False), 5, "waiter", now_ms=NOW_MS)
    assert aborted == answered(EndTxnResponse(producer_id=PID, producer_epoch=EPOCH + 1))
    committed = world.decide_end_txn(end(True), 5, "waiter", now_ms=NOW_MS)
    assert committed == answered(EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))


# ---- roll-over ----


@outcomes
def test_the_last_epoch_ends_with_a_fresh_producer_id(commit: bool) -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    asked = EndContinuation(end(commit, producer_epoch=LAST_EPOCH), 5, "waiter")
    waiting = worn.decide_end_txn(asked.request, 5, "waiter", now_ms=NOW_MS)
    assert waiting == Decision(effects=(AllocateProducerId(asked),))
    prepared = metadata(
        PREPARED[commit],
        producer_epoch=LAST_EPOCH + 1,
        next_producer_id=FRESH,
        last_update_ms=NOW_MS,
        client_transaction_version=2,
    )
    decision = worn.decide_producer_id(asked, FRESH, now_ms=NOW_MS)
    assert decision == Decision(
        (record(prepared),),
        (
            RememberEpoch(ID, LAST_EPOCH),
            STOP,
            Reply("waiter", EndTxnResponse(producer_id=FRESH, producer_epoch=0)),
            markers(commit, producer_epoch=LAST_EPOCH + 1, transaction_version=2),
        ),
    )
    worn.apply(decision.records[0])
    completed = metadata(
        COMPLETED[commit],
        producer_id=FRESH,
        producer_epoch=0,
        last_update_ms=NOW_MS,
        client_transaction_version=2,
    )
    done = worn.decide_markers_written(ID, PID, LAST_EPOCH + 1, now_ms=NOW_MS)
    assert done == Decision((record(completed),))
    worn.apply(done.records[0])
    retried = worn.decide_end_txn(asked.request, 5, "waiter", now_ms=NOW_MS)
    assert retried == answered(EndTxnResponse(producer_id=FRESH, producer_epoch=0))


def test_where_no_producer_id_can_be_had_nothing_is_decided() -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    asked = EndContinuation(end(True, producer_epoch=LAST_EPOCH), 5, "waiter")
    decision = worn.decide_producer_id(asked, None, now_ms=NOW_MS)
    assert decision == answered(EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


@outcomes
def test_a_classic_end_at_the_last_epoch_needs_no_producer_id(commit: bool) -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    decision = worn.decide_end_txn(
        end(commit, producer_epoch=LAST_EPOCH), 4, "waiter", now_ms=NOW_MS
    )
    assert decision.records == (
        record(metadata(PREPARED[commit], producer_epoch=LAST_EPOCH, last_update_ms=NOW_MS)),
    )


def test_a_worn_out_epoch_still_aborts() -> None:
    """32767 is never given to a client; a log that has it open all the same must not be stuck."""
    broken = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH + 1))
    asked = EndContinuation(end(False, producer_epoch=LAST_EPOCH + 1), 5, "waiter")
    decision = broken.decide_producer_id(asked, FRESH, now_ms=NOW_MS)
    assert decision.effects[2] == Reply(
        "waiter", EndTxnResponse(producer_id=FRESH, producer_epoch=0)
    )
    assert decision.effects[3] == markers(
        False, producer_epoch=LAST_EPOCH + 1, transaction_version=2
    )


# ---- after a crash ----


def test_loading_resumes_what_was_decided_and_watches_what_is_open() -> None:
    world = TransactionShard(COORDINATOR_EPOCH, SETTINGS)
    for name, known in {
        "idle": metadata(S.COMPLETE_COMMIT),
        "committing": metadata(S.PREPARE_COMMIT),
        "aborting": metadata(S.PREPARE_ABORT, producer_epoch=8, client_transaction_version=2),
        "open": metadata(S.ONGOING),
        "bare": metadata(S.PREPARE_ABORT, partitions=frozenset()),
    }.items():
        world.apply(record(known, name))
    bare = metadata(S.COMPLETE_ABORT, last_update_ms=NOW_MS)
    assert world.on_loaded(now_ms=NOW_MS) == Decision(
        (record(bare, "bare"),),
        (
            markers(True, transactional_id="committing"),
            markers(False, transactional_id="aborting", producer_epoch=8, transaction_version=2),
            Arm(deadline_key("open"), 1_000_060_000),
            Arm(EXPIRY, 1_000_800_000),
        ),
    )


def test_an_empty_shard_does_nothing_when_loaded() -> None:
    assert shard().on_loaded(now_ms=NOW_MS) == NOTHING
