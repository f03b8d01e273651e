"""One member's next step towards its target, state by state."""

from __future__ import annotations

import pytest

from millstream.groups.consumer.member import Current, MemberState
from millstream.groups.consumer.reconciliation import Claimed, Fenced, reconcile

A, B = b"a" * 16, b"b" * 16
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def step(
    current: Current,
    target: dict[bytes, set[int]],
    claimed: Claimed = None,
    *,
    held: set[int] | None = None,
    subscribed: tuple[bytes, ...] = (A, B),
    changed: bool = False,
) -> Current:
    """Towards epoch 5; ``held`` are partitions of ``A`` that others have."""
    return reconcile(
        current,
        5,
        {topic: frozenset(indexes) for topic, indexes in target.items()},
        subscribed,
        lambda topic, index: topic == A and index in (held or ()),
        claimed,
        subscription_changed=changed,
    )


HAS_TWO = Current(4, 3, STABLE, {A: {0: 2, 1: 3}})


def test_what_is_reconciled_stays() -> None:
    current = Current(5, 4, STABLE, {A: {0: 5}})
    assert step(current, {A: {0}}) is current


def test_more_is_added_at_once() -> None:
    assert step(HAS_TWO, {A: {0, 1, 2}}) == Current(5, 4, STABLE, {A: {0: 2, 1: 3, 2: 5}})


def test_less_must_be_given_back_first() -> None:
    revoking = Current(4, 4, UNREVOKED, {A: {0: 2}}, {A: {1: 3}})
    assert step(HAS_TWO, {A: {0, 2}}) == revoking
    assert step(revoking, {A: {0, 2}}) is revoking
    assert step(revoking, {A: {0, 2}}, {A: [0, 1]}) is revoking
    assert step(revoking, {A: {0, 2}}, {A: [0]}) == Current(5, 4, STABLE, {A: {0: 2, 2: 5}})


def test_who_says_that_it_has_given_back_already_goes_on() -> None:
    assert step(HAS_TWO, {A: {0}}, {A: [0]}) == Current(5, 4, STABLE, {A: {0: 2}})


def test_what_others_have_is_waited_for() -> None:
    waiting = Current(5, 4, UNRELEASED, {A: {0: 2, 1: 3}})
    assert step(HAS_TWO, {A: {0, 1, 2}}, held={2}) == waiting
    assert step(waiting, {A: {0, 1, 2}}) == Current(5, 5, STABLE, {A: {0: 2, 1: 3, 2: 5}})


def test_a_target_that_changed_back_returns_what_was_being_revoked() -> None:
    revoking = Current(4, 4, UNREVOKED, {A: {0: 2}}, {A: {1: 3}})
    assert step(revoking, {A: {0, 1}}, {A: [0]}) == Current(5, 4, STABLE, {A: {0: 2, 1: 5}})


def test_topics_it_does_not_want_any_more_are_given_back_without_a_new_target() -> None:
    current = Current(5, 4, STABLE, {A: {0: 5}, B: {0: 5}})
    target = {A: {0}, B: {0}}
    assert step(current, target, subscribed=(A,), changed=True) == Current(
        5, 5, UNREVOKED, {A: {0: 5}}, {B: {0: 5}}
    )
    assert step(current, target, {A: [0]}, subscribed=(A,), changed=True) == Current(
        5, 5, STABLE, {A: {0: 5}}
    )
    assert step(current, target, subscribed=(A, B), changed=True) is current


def test_more_to_give_back_while_giving_back() -> None:
    revoking = Current(4, 4, UNREVOKED, {A: {0: 2}, B: {0: 2}}, {A: {1: 3}})
    assert step(revoking, {A: {0}}, subscribed=(A,), changed=True) == Current(
        4, 4, UNREVOKED, {A: {0: 2}}, {A: {1: 3}, B: {0: 2}}
    )


def test_the_target_gives_nothing_of_a_topic_that_is_not_wanted() -> None:
    assert step(Current(), {B: {0}}, {}, subscribed=(A,)) == Current(5, 0, STABLE, {})


def test_a_state_of_a_later_version_starts_over() -> None:
    current = Current(4, 3, MemberState.UNKNOWN, {A: {0: 4}})
    for claimed in (None, {A: [0]}):
        with pytest.raises(Fenced):
            step(current, {A: {0}}, claimed)
    assert step(current, {A: {0}}, {}) == Current(5, 4, STABLE, {A: {0: 4}})
