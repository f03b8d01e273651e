"""InitProducerId with a transactional id: first use, bumps, fencing, KIP-360, roll-over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.core.decisions import Arm, Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.transactions.effects import AllocateProducerId, InitContinuation, RememberEpoch
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.states import TransactionState
from millstream.transactions.timers import EXPIRY, deadline_key
from millstream.wire.messages.init_producer_id import InitProducerIdResponse
from support.transactions.samples import (
    CLASSIC_SETTINGS,
    EPOCH,
    ID,
    LAST_EPOCH,
    NOW_MS,
    PID,
    S,
    answered,
    init,
    markers,
    metadata,
    record,
    shard,
)

FRESH = 100


def begun(producer_id: int, epoch: int, **changes: int) -> TransactionMetadata:
    """The id after a successful InitProducerId."""
    base = metadata(producer_id=producer_id, producer_epoch=epoch, last_update_ms=NOW_MS)
    return replace(base, **changes)


def given(producer_id: int, epoch: int) -> Reply:
    return Reply("waiter", InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))


def refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def test_a_new_id_gets_a_fresh_producer_id_at_epoch_0() -> None:
    empty = shard()
    asked = InitContinuation(init(), 4, "waiter")
    waiting = empty.decide_init_producer_id(init(), 4, "waiter", now_ms=NOW_MS)
    assert waiting == Decision(effects=(AllocateProducerId(asked),))
    assert empty.decide_producer_id(asked, FRESH, now_ms=NOW_MS) == Decision(
        (record(begun(FRESH, 0, previous_producer_id=FRESH)),),
        (Arm(EXPIRY, 1_000_800_000), given(FRESH, 0)),
    )


def test_a_new_id_takes_in_a_producer_that_names_an_old_id() -> None:
    """Its transactional id expired meanwhile (KIP-360)."""
    asked = InitContinuation(init(producer_id=PID, producer_epoch=EPOCH), 4, "waiter")
    decision = shard().decide_producer_id(asked, FRESH, now_ms=NOW_MS)
    assert decision.effects[-1] == given(FRESH, 0)


def test_where_no_producer_id_can_be_had_the_client_comes_again() -> None:
    asked = InitContinuation(init(), 4, "waiter")
    decision = shard().decide_producer_id(asked, None, now_ms=NOW_MS)
    assert decision == answered(refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_new_producer_bumps_the_epoch(state: TransactionState) -> None:
    decision = shard(metadata(state), last_epoch=2).decide_init_producer_id(
        init(transaction_timeout_ms=1234), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == Decision(
        (record(begun(PID, EPOCH + 1, timeout_ms=1234)),),
        (RememberEpoch(ID, -1), given(PID, EPOCH + 1)),
    )


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_producer_that_names_its_epoch_is_bumped_and_may_retry(state: TransactionState) -> None:
    decision = shard(metadata(state)).decide_init_producer_id(
        init(producer_id=PID, producer_epoch=EPOCH), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == Decision(
        (record(begun(PID, EPOCH + 1)),), (RememberEpoch(ID, EPOCH), given(PID, EPOCH + 1))
    )


def test_the_retry_of_a_bump_gets_the_same_epoch() -> None:
    decision = shard(metadata(), last_epoch=EPOCH - 1).decide_init_producer_id(
        init(producer_id=PID, producer_epoch=EPOCH - 1), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == Decision(
        (record(begun(PID, EPOCH)),), (RememberEpoch(ID, EPOCH - 1), given(PID, EPOCH))
    )


def test_a_bump_by_another_producer_makes_the_retry_a_zombie() -> None:
    world = shard(metadata(), last_epoch=EPOCH - 1)
    decision = world.decide_init_producer_id(init(), 4, "new", now_ms=NOW_MS)
    for effect in decision.effects[:-1]:
        world.perform(effect)
    world.apply(decision.records[0])
    late = world.decide_init_producer_id(
        init(producer_id=PID, producer_epoch=EPOCH), 4, "waiter", now_ms=NOW_MS
    )
    assert late == answered(refused(ErrorCode.PRODUCER_FENCED))


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("named", [{}, {"producer_id": 99, "producer_epoch": 0}])
def test_until_every_marker_is_durable_nobody_begins(
    state: TransactionState, named: dict[str, int]
) -> None:
    decision = shard(metadata(state)).decide_init_producer_id(
        init(**named), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == answered(refused(ErrorCode.CONCURRENT_TRANSACTIONS))


def test_an_open_transaction_is_aborted_under_a_bumped_epoch_first() -> None:
    decision = shard(metadata(S.ONGOING)).decide_init_producer_id(
        init(), 4, "waiter", now_ms=NOW_MS
    )
    aborted = metadata(
        S.PREPARE_ABORT,
        producer_epoch=EPOCH + 1,
        last_update_ms=NOW_MS,
        client_transaction_version=2,
    )
    assert decision == Decision(
        (record(aborted),),
        (
            RememberEpoch(ID, EPOCH),
            Disarm(deadline_key(ID)),
            Reply("waiter", refused(ErrorCode.CONCURRENT_TRANSACTIONS)),
            markers(False, producer_epoch=EPOCH + 1, transaction_version=2),
        ),
    )


def test_before_transaction_version_2_the_fence_leaves_no_epoch_to_retry_with() -> None:
    decision = shard(metadata(S.ONGOING), CLASSIC_SETTINGS, last_epoch=2).decide_init_producer_id(
        init(), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == Decision(
        (record(metadata(S.PREPARE_ABORT, producer_epoch=EPOCH + 1, last_update_ms=NOW_MS)),),
        (
            RememberEpoch(ID, -1),
            Disarm(deadline_key(ID)),
            Reply("waiter", refused(ErrorCode.CONCURRENT_TRANSACTIONS)),
            markers(False, producer_epoch=EPOCH + 1),
        ),
    )


def test_a_zombie_does_not_abort_the_transaction_of_its_successor() -> None:
    decision = shard(metadata(S.ONGOING)).decide_init_producer_id(
        init(producer_id=PID, producer_epoch=EPOCH - 1), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == answered(refused(ErrorCode.PRODUCER_FENCED))


# ---- roll-over ----


@pytest.mark.parametrize(
    ("named", "last_epoch"),
    [({}, -1), ({"producer_id": PID, "producer_epoch": LAST_EPOCH}, LAST_EPOCH)],
)
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_after_the_last_epoch_a_fresh_producer_id_begins_at_0(
    state: TransactionState, named: dict[str, int], last_epoch: int
) -> None:
    worn = shard(metadata(state, producer_epoch=LAST_EPOCH))
    asked = InitContinuation(init(**named), 4, "waiter")
    waiting = worn.decide_init_producer_id(asked.request, 4, "waiter", now_ms=NOW_MS)
    assert waiting == Decision(effects=(AllocateProducerId(asked),))
    assert worn.decide_producer_id(asked, FRESH, now_ms=NOW_MS) == Decision(
        (record(begun(FRESH, 0)),), (RememberEpoch(ID, last_epoch), given(FRESH, 0))
    )


def test_the_retry_of_a_roll_over_gets_the_same_producer() -> None:
    rolled = metadata(producer_id=FRESH, producer_epoch=0, previous_producer_id=PID)
    decision = shard(rolled, last_epoch=LAST_EPOCH).decide_init_producer_id(
        init(producer_id=PID, producer_epoch=LAST_EPOCH), 4, "waiter", now_ms=NOW_MS
    )
    again = begun(FRESH, 0, previous_producer_id=FRESH)
    assert decision == Decision((record(again),), (RememberEpoch(ID, LAST_EPOCH), given(FRESH, 0)))


def test_the_retry_of_a_bump_to_the_last_epoch_gets_it() -> None:
    worn = shard(metadata(producer_epoch=LAST_EPOCH), last_epoch=LAST_EPOCH - 1)
    decision = worn.decide_init_producer_id(
        init(producer_id=PID, producer_epoch=LAST_EPOCH - 1), 4, "waiter", now_ms=NOW_MS
    )
    assert decision.effects[-1] == given(PID, LAST_EPOCH)


@pytest.mark.parametrize(
    "named",
    [
        {"producer_id": PID, "producer_epoch": LAST_EPOCH - 1},
        {"producer_id": PID, "producer_epoch": 0},
        {"producer_id": 99, "producer_epoch": 0},
        {"producer_id": FRESH, "producer_epoch": 1},
    ],
)
def test_others_than_the_rolled_over_producer_are_fenced(named: dict[str, int]) -> None:
    rolled = metadata(producer_id=FRESH, producer_epoch=0, previous_producer_id=PID)
    decision = shard(rolled, last_epoch=LAST_EPOCH).decide_init_producer_id(
        init(**named), 4, "waiter", now_ms=NOW_MS
    )
    assert decision == answered(refused(ErrorCode.PRODUCER_FENCED))


def test_fencing_at_the_last_epoch_rolls_over_with_the_abort() -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH))
    asked = InitContinuation(init(), 4, "waiter")
    waiting = worn.decide_init_producer_id(init(), 4, "waiter", now_ms=NOW_MS)
    assert waiting == Decision(effects=(AllocateProducerId(asked),))
    aborted = metadata(
        S.PREPARE_ABORT,
        producer_epoch=LAST_EPOCH + 1,
        next_producer_id=FRESH,
        last_update_ms=NOW_MS,
        client_transaction_version=2,
    )
    decision = worn.decide_producer_id(asked, FRESH, now_ms=NOW_MS)
    assert decision.records == (record(aborted),)
    worn.apply(decision.records[0])
    done = worn.decide_markers_written(ID, PID, LAST_EPOCH + 1, now_ms=NOW_MS + 1)
    assert done == Decision(
        (
            record(
                metadata(
                    S.COMPLETE_ABORT,
                    producer_id=FRESH,
                    producer_epoch=0,
                    last_update_ms=NOW_MS + 1,
                    client_transaction_version=2,
                )
            ),
        )
    )


def test_fencing_at_the_last_epoch_of_the_classic_protocol_uses_the_epoch_kept_for_it() -> None:
    worn = shard(metadata(S.ONGOING, producer_epoch=LAST_EPOCH), CLASSIC_SETTINGS)
    decision = worn.decide_init_producer_id(init(), 4, "waiter", now_ms=NOW_MS)
    aborted = metadata(S.PREPARE_ABORT, producer_epoch=LAST_EPOCH + 1, last_update_ms=NOW_MS)
    assert decision.records == (record(aborted),)
    worn.apply(decision.records[0])
    worn.apply(worn.decide_markers_written(ID, PID, LAST_EPOCH + 1, now_ms=NOW_MS).records[0])
    again = worn.decide_init_producer_id(init(), 4, "waiter", now_ms=NOW_MS)
    assert again == Decision(effects=(AllocateProducerId(InitContinuation(init(), 4, "waiter")),))


def test_a_producer_id_that_is_not_needed_any_more_is_left_over() -> None:
    """Two clients opened the same new id at once: the second gets the next epoch of the first one's
    producer id.
    """
    world = shard(metadata(producer_epoch=0))
    decision = world.decide_producer_id(InitContinuation(init(), 4, "waiter"), FRESH, now_ms=NOW_MS)
    assert decision.effects[-1] == given(PID, 1)
