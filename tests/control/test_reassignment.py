"""Moving replicas: more first, fewer when the new ones are in sync; another goal on the way; and back again."""

from __future__ import annotations

import pytest

from millstream.control.election import Brokers
from millstream.control.reassignment import begin, cancel, complete, is_complete
from millstream.control.znodes import Assignment, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER

ALL = Brokers(frozenset(range(6)))
SETTLED = Assignment((1, 2, 3))


def test_the_wanted_come_first_and_those_that_go_follow():
    assert begin(SETTLED, (3, 4, 5)) == Assignment((3, 4, 5, 1, 2), adding=(4, 5), removing=(1, 2))


def test_a_new_order_alone_is_done_at_once():
    moving = begin(SETTLED, (3, 2, 1))
    assert moving == Assignment((3, 2, 1))
    assert not moving.moving


def test_another_goal_on_the_way_keeps_what_was_added_for_the_old_one_until_it_is_reached():
    second = begin(begin(SETTLED, (1, 2, 4)), (1, 2, 5))
    assert second == Assignment((1, 2, 5, 3, 4), adding=(5, 4), removing=(3, 4))
    assert (second.target, second.origin) == ((1, 2, 5), (1, 2, 3))
    assert begin(second, (1, 4, 5)) == Assignment((1, 4, 5, 2, 3), adding=(4, 5), removing=(2, 3))


def test_another_goal_that_is_cancelled_goes_back_to_where_all_began():
    second = begin(begin(SETTLED, (1, 2, 4)), (1, 2, 5))
    assert cancel(second, PartitionState(4, 7, (1, 2, 3, 4)), ALL) == (
        Assignment((1, 2, 3)),
        PartitionState(1, 8, (1, 2, 3)),
    )


def test_the_old_place_as_a_goal_on_the_way_is_the_way_back():
    moving = begin(begin(SETTLED, (1, 2, 4)), (1, 2, 3))
    assert moving == Assignment((1, 2, 3, 4), adding=(4,), removing=(4,))
    assert (moving.target, moving.origin) == ((1, 2, 3), (1, 2, 3))


def test_it_is_complete_when_all_that_are_wanted_are_in_sync():
    moving = begin(SETTLED, (3, 4, 5))
    assert not is_complete(moving, PartitionState(1, 7, (1, 2, 3, 4)))
    assert not is_complete(moving, PartitionState(1, 7, (1, 2, 4, 5))), (
        "3 stays, and has to have everything too"
    )
    assert is_complete(moving, PartitionState(1, 7, (1, 3, 4, 5)))
    assert not is_complete(SETTLED, PartitionState(1, 7, (1, 2, 3)))


def test_a_copy_in_sync_does_not_go_while_one_that_stays_is_away():
    """One of three brokers is down: with two replicas wanted, that one among them, the healthy third is the second copy."""
    fewer = begin(SETTLED, (1, 2))
    assert not is_complete(fewer, PartitionState(1, 7, (1, 3)))
    assert is_complete(fewer, PartitionState(1, 7, (1, 2, 3)))


def test_a_leader_that_goes_hands_over_to_the_first_that_stays():
    moving = begin(SETTLED, (3, 4, 5))
    state = PartitionState(1, 7, (1, 2, 3, 4, 5))
    assert complete(moving, state, ALL) == (Assignment((3, 4, 5)), PartitionState(3, 8, (3, 4, 5)))


def test_a_leader_that_stays_leads_on_in_a_new_epoch_when_another_replica_goes():
    """It may be added again before its broker has deleted it: what that one fetches until then is of the old epoch."""
    moving = begin(SETTLED, (1, 4, 5))
    state = PartitionState(1, 7, (1, 2, 4, 5))
    assert complete(moving, state, ALL) == (Assignment((1, 4, 5)), PartitionState(1, 8, (1, 4, 5)))


def test_replicas_that_only_come_begin_no_epoch():
    moving = begin(SETTLED, (1, 2, 3, 4))
    state = PartitionState(1, 7, (1, 2, 3, 4))
    assert complete(moving, state, ALL) == (Assignment((1, 2, 3, 4)), state)


def test_where_nobody_leads_the_next_leader_has_an_epoch_of_its_own():
    moving = begin(SETTLED, (1, 4))
    state = PartitionState(NO_LEADER, 7, (1, 4))
    gone = Brokers(frozenset((2, 3)))
    assert complete(moving, state, gone)[1] == PartitionState(NO_LEADER, 8, (1, 4))
    assert complete(moving, state, ALL)[1] == PartitionState(1, 8, (1, 4))


def test_a_cancellation_goes_back():
    moving = begin(SETTLED, (3, 4, 5))
    assert cancel(moving, PartitionState(3, 7, (3, 4, 1)), ALL) == (
        Assignment((3, 1, 2)),
        PartitionState(3, 8, (3, 1)),
    )
    assert cancel(moving, PartitionState(4, 7, (4, 1)), ALL) == (
        Assignment((3, 1, 2)),
        PartitionState(1, 8, (1,)),
    )


def test_a_cancellation_that_would_lose_what_was_acknowledged_is_refused():
    moving = begin(SETTLED, (4, 5))
    with pytest.raises(ApiError) as refused:
        cancel(moving, PartitionState(4, 7, (4, 5)), ALL)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_there_must_be_something_to_cancel():
    with pytest.raises(ApiError) as refused:
        cancel(SETTLED, PartitionState(1, 7, (1, 2, 3)), ALL)
    assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
