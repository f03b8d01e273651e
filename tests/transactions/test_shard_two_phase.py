"""Two-phase participation (KIP-939): transactions that wait for an outer coordinator, and survive
their client.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.core.decisions import Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.transactions.effects import AllocateProducerId, InitContinuation, RememberEpoch
from millstream.transactions.metadata import NO_TIMEOUT_MS, TransactionMetadata
from millstream.transactions.shard import TransactionShard
from millstream.transactions.timers import deadline_key
from millstream.wire.messages.end_txn import EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdResponse
from support.transactions.samples import (
    A0,
    EPOCH,
    ID,
    LAST_EPOCH,
    NOW_MS,
    PID,
    TWO_PHASE_SETTINGS,
    S,
    answered,
    end,
    init,
    join,
    joined,
    markers,
    metadata,
    record,
    shard,
)

FRESH = 100
TAKE_OVER = init(enable_two_phase_commit=True, keep_prepared_txn=True, transaction_timeout_ms=0)


def kept(
    client_epoch: int = EPOCH + 1, client_id: int = PID, **changes: int
) -> TransactionMetadata:
    """An open transaction at (PID, EPOCH) whose client has moved on."""
    fields = {
        "next_producer_id": client_id,
        "next_producer_epoch": client_epoch,
        "timeout_ms": NO_TIMEOUT_MS,
    }
    return metadata(S.ONGOING, **(fields | changes))


def two_phase(known: TransactionMetadata) -> TransactionShard:
    return shard(known, TWO_PHASE_SETTINGS)


def taken_over(client: tuple[int, int]) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=client[0],
        producer_epoch=client[1],
        ongoing_txn_producer_id=PID,
        ongoing_txn_producer_epoch=EPOCH,
    )


def test_a_two_phase_producer_has_no_timeout_whatever_it_names() -> None:
    for timeout_ms in (0, -1, 2**31 - 1):
        request = init(enable_two_phase_commit=True, transaction_timeout_ms=timeout_ms)
        decision = two_phase(metadata()).decide_init_producer_id(
            request, 6, "waiter", now_ms=NOW_MS
        )
        begun = metadata(producer_epoch=EPOCH + 1, timeout_ms=NO_TIMEOUT_MS, last_update_ms=NOW_MS)
        assert decision.records == (record(begun),)


def test_a_prepared_transaction_is_kept_for_the_client_that_takes_it_over() -> None:
    world = two_phase(metadata(S.ONGOING))
    decision = world.decide_init_producer_id(TAKE_OVER, 6, "waiter", now_ms=NOW_MS)
    assert decision == Decision(
        (record(replace(kept(), last_update_ms=NOW_MS)),),
        (
            RememberEpoch(ID, -1),
            Disarm(deadline_key(ID)),
            Reply("waiter", taken_over((PID, EPOCH + 1))),
        ),
    )


def test_a_client_that_crashes_again_takes_over_again() -> None:
    decision = two_phase(kept(7)).decide_init_producer_id(TAKE_OVER, 6, "waiter", now_ms=NOW_MS)
    assert decision.records == (record(replace(kept(8), last_update_ms=NOW_MS)),)
    assert decision.effects[-1] == Reply("waiter", taken_over((PID, 8)))


def test_taking_over_without_two_phase_leaves_the_deadline_alone() -> None:
    world = two_phase(metadata(S.ONGOING))
    decision = world.decide_init_producer_id(
        init(keep_prepared_txn=True), 6, "waiter", now_ms=NOW_MS
    )
    changed = metadata(
        S.ONGOING, next_producer_id=PID, next_producer_epoch=EPOCH + 1, last_update_ms=NOW_MS
    )
    reply = Reply("waiter", taken_over((PID, EPOCH + 1)))
    assert decision == Decision((record(changed),), (RememberEpoch(ID, -1), reply))


def test_taking_over_at_the_last_epoch_rolls_over_the_client_alone() -> None:
    world = two_phase(kept(LAST_EPOCH))
    asked = InitContinuation(TAKE_OVER, 6, "waiter")
    waiting = world.decide_init_producer_id(TAKE_OVER, 6, "waiter", now_ms=NOW_MS)
    assert waiting == Decision(effects=(AllocateProducerId(asked),))
    decision = world.decide_producer_id(asked, FRESH, now_ms=NOW_MS)
    assert decision.records == (record(replace(kept(0, FRESH), last_update_ms=NOW_MS)),)
    assert decision.effects[-1] == Reply("waiter", taken_over((FRESH, 0)))


def test_where_nothing_is_open_there_is_nothing_to_keep() -> None:
    world = two_phase(metadata(S.COMPLETE_COMMIT))
    decision = world.decide_init_producer_id(TAKE_OVER, 6, "waiter", now_ms=NOW_MS)
    reply = InitProducerIdResponse(producer_id=PID, producer_epoch=EPOCH + 1)
    assert decision.effects == (RememberEpoch(ID, -1), Reply("waiter", reply))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("client", "following"),
    [((PID, EPOCH + 1), (PID, EPOCH + 2)), ((PID, LAST_EPOCH), (FRESH, 0)), ((50, 0), (50, 1))],
)
def test_the_client_ends_under_its_own_epoch_and_markers_carry_the_transactions(
    commit: bool, client: tuple[int, int], following: tuple[int, int]
) -> None:
    world = two_phase(kept(client[1], client[0]))
    request = end(commit, producer_id=client[0], producer_epoch=client[1])
    decision = world.decide_end_txn(request, 5, "waiter", now_ms=NOW_MS)
    if following[0] == FRESH:
        (allocate,) = decision.effects
        decision = world.decide_producer_id(allocate.continuation, FRESH, now_ms=NOW_MS)
    assert decision.effects == (
        RememberEpoch(ID, client[1]),
        Reply("waiter", EndTxnResponse(producer_id=following[0], producer_epoch=following[1])),
        markers(commit, producer_epoch=EPOCH + 1, transaction_version=2),
    )
    world.apply(decision.records[0])
    world.apply(world.decide_markers_written(ID, PID, EPOCH + 1, now_ms=NOW_MS).records[0])
    done = world.durable[ID]
    assert (done.producer_id, done.producer_epoch) == following
    assert (done.next_producer_id, done.next_producer_epoch) == (-1, -1)
    retried = world.decide_end_txn(request, 5, "waiter", now_ms=NOW_MS)
    assert retried == answered(
        EndTxnResponse(producer_id=following[0], producer_epoch=following[1])
    )


def test_the_client_that_prepared_it_is_fenced() -> None:
    decision = two_phase(kept()).decide_end_txn(end(True), 5, "waiter", now_ms=NOW_MS)
    assert decision == answered(EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))


@pytest.mark.parametrize("verify_only", [True, False])
@pytest.mark.parametrize(
    ("epoch", "code"),
    [(EPOCH, ErrorCode.PRODUCER_FENCED), (EPOCH + 1, ErrorCode.INVALID_TXN_STATE)],
)
def test_a_kept_transaction_can_only_be_ended(
    epoch: int, code: ErrorCode, verify_only: bool
) -> None:
    asked = join(A0, producer_epoch=epoch, verify_only=verify_only)
    decision = two_phase(kept()).decide_add_partitions(asked, 5, "waiter", now_ms=NOW_MS)
    assert decision == answered(joined(a0=code))


def test_beginning_anew_aborts_a_kept_transaction() -> None:
    world = two_phase(kept(7))
    decision = world.decide_init_producer_id(init(), 6, "waiter", now_ms=NOW_MS)
    assert decision.effects[-1] == markers(False, producer_epoch=EPOCH + 1, transaction_version=2)
    world.apply(decision.records[0])
    world.apply(world.decide_markers_written(ID, PID, EPOCH + 1, now_ms=NOW_MS).records[0])
    assert (world.durable[ID].producer_id, world.durable[ID].producer_epoch) == (PID, 8)
