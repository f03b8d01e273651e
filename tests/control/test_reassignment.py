"""Reassignment: start, change of target, completion and cancellation."""

from __future__ import annotations

import pytest

from millstream.control.election import Brokers
from millstream.control.reassignment import begin, cancel, complete, is_complete
from millstream.control.znodes import Assignment, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER

ALL = Brokers(frozenset(range(6)))
STABLE = Assignment((1, 2, 3))


def test_target_replicas_come_first_and_removed_replicas_follow():
    assert begin(STABLE, (3, 4, 5)) == Assignment((3, 4, 5, 1, 2), adding=(4, 5), removing=(1, 2))


def test_new_replica_order_is_complete_at_once():
    reassigning = begin(STABLE, (3, 2, 1))
    assert reassigning == Assignment((3, 2, 1))
    assert not reassigning.reassigning


def test_new_target_keeps_added_replicas_until_completion():
    second = begin(begin(STABLE, (1, 2, 4)), (1, 2, 5))
    assert second == Assignment((1, 2, 5, 3, 4), adding=(5, 4), removing=(3, 4))
    assert (second.target, second.origin) == ((1, 2, 5), (1, 2, 3))
    assert begin(second, (1, 4, 5)) == Assignment((1, 4, 5, 2, 3), adding=(4, 5), removing=(2, 3))


def test_cancellation_after_new_target_restores_original_replicas():
    second = begin(begin(STABLE, (1, 2, 4)), (1, 2, 5))
    assert cancel(second, PartitionState(4, 7, (1, 2, 3, 4)), ALL) == (
        Assignment((1, 2, 3)),
        PartitionState(1, 8, (1, 2, 3)),
    )


def test_original_replicas_as_new_target_undo_the_reassignment():
    reassigning = begin(begin(STABLE, (1, 2, 4)), (1, 2, 3))
    assert reassigning == Assignment((1, 2, 3, 4), adding=(4,), removing=(4,))
    assert (reassigning.target, reassigning.origin) == ((1, 2, 3), (1, 2, 3))


def test_reassignment_completes_when_all_target_replicas_are_in_sync():
    reassigning = begin(STABLE, (3, 4, 5))
    assert not is_complete(reassigning, PartitionState(1, 7, (1, 2, 3, 4)))
    assert not is_complete(reassigning, PartitionState(1, 7, (1, 2, 4, 5))), (
        "3 stays, and must be in sync too"
    )
    assert is_complete(reassigning, PartitionState(1, 7, (1, 3, 4, 5)))
    assert not is_complete(STABLE, PartitionState(1, 7, (1, 2, 3)))


def test_in_sync_replica_stays_while_a_target_replica_is_down():
    """With broker 2 of the target (1, 2) down, the healthy third replica is the second copy."""
    fewer = begin(STABLE, (1, 2))
    assert not is_complete(fewer, PartitionState(1, 7, (1, 3)))
    assert is_complete(fewer, PartitionState(1, 7, (1, 2, 3)))


def test_removed_leader_hands_over_to_the_first_target_replica():
    reassigning = begin(STABLE, (3, 4, 5))
    state = PartitionState(1, 7, (1, 2, 3, 4, 5))
    assert complete(reassigning, state, ALL) == (
        Assignment((3, 4, 5)),
        PartitionState(3, 8, (3, 4, 5)),
    )


def test_removal_of_a_follower_starts_a_new_leader_epoch():
    """It may be added again before its broker has deleted it; its fetches have the old epoch."""
    reassigning = begin(STABLE, (1, 4, 5))
    state = PartitionState(1, 7, (1, 2, 4, 5))
    assert complete(reassigning, state, ALL) == (
        Assignment((1, 4, 5)),
        PartitionState(1, 8, (1, 4, 5)),
    )


def test_added_replicas_start_no_leader_epoch():
    reassigning = begin(STABLE, (1, 2, 3, 4))
    state = PartitionState(1, 7, (1, 2, 3, 4))
    assert complete(reassigning, state, ALL) == (Assignment((1, 2, 3, 4)), state)


def test_next_leader_of_a_leaderless_partition_gets_a_new_epoch():
    reassigning = begin(STABLE, (1, 4))
    state = PartitionState(NO_LEADER, 7, (1, 4))
    others = Brokers(frozenset((2, 3)))
    assert complete(reassigning, state, others)[1] == PartitionState(NO_LEADER, 8, (1, 4))
    assert complete(reassigning, state, ALL)[1] == PartitionState(1, 8, (1, 4))


def test_cancellation_restores_original_replicas():
    reassigning = begin(STABLE, (3, 4, 5))
    assert cancel(reassigning, PartitionState(3, 7, (3, 4, 1)), ALL) == (
        Assignment((3, 1, 2)),
        PartitionState(3, 8, (3, 1)),
    )
    assert cancel(reassigning, PartitionState(4, 7, (4, 1)), ALL) == (
        Assignment((3, 1, 2)),
        PartitionState(1, 8, (1,)),
    )


def test_cancellation_that_loses_acknowledged_records_is_rejected():
    reassigning = begin(STABLE, (4, 5))
    with pytest.raises(ApiError) as error:
        cancel(reassigning, PartitionState(4, 7, (4, 5)), ALL)
    assert error.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_cancellation_without_reassignment_is_rejected():
    with pytest.raises(ApiError) as error:
        cancel(STABLE, PartitionState(1, 7, (1, 2, 3)), ALL)
    assert error.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
