"""The broker's assignors: what they promise for any members, topics and past."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.groups.assignors.builtin import ASSIGNORS, MemberSpec, assign_range, assign_uniform
from millstream.groups.consumer.member import Partitions
from support.groups import slow_balance

A, B, C = (letter.encode() * 16 for letter in "abc")
Target = Mapping[str, Partitions]


def spec(
    *topics: bytes, target: Partitions | None = None, instance: str | None = None
) -> MemberSpec:
    return MemberSpec(frozenset(topics), instance, target or {})


def parts(**topics: set[int]) -> dict[bytes, frozenset[int]]:
    return {name.encode() * 16: frozenset(indexes) for name, indexes in topics.items()}


def places(partitions: Partitions) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


def loads(target: Target) -> list[int]:
    return sorted(len(places(partitions)) for partitions in target.values())


def moved(before: Mapping[str, MemberSpec], after: Target) -> int:
    """How many partitions changed from one member to another."""
    return sum(len(places(before[name].target) - places(after.get(name, {}))) for name in before)


# ---- range ----


def test_range_gives_neighbours_and_one_more_to_the_first() -> None:
    members = {"m1": spec(A, B), "m2": spec(A, B), "m3": spec(A, B)}
    assert assign_range(members, {A: 7, B: 3}) == {
        "m1": parts(a={0, 1, 2}, b={0}),
        "m2": parts(a={3, 4}, b={1}),
        "m3": parts(a={5, 6}, b={2}),
    }


def test_range_divides_topics_of_the_same_size_alike() -> None:
    members = {name: spec(A, B) for name in ("m1", "m2")}
    for partitions in assign_range(members, {A: 5, B: 5}).values():
        assert partitions[A] == partitions[B]


def test_range_counts_only_those_that_want_the_topic() -> None:
    members = {"m1": spec(A), "m2": spec(A, B), "m3": spec(B)}
    assert assign_range(members, {A: 4, B: 3}) == {
        "m1": parts(a={0, 1}),
        "m2": parts(a={2, 3}, b={0, 1}),
        "m3": parts(b={2}),
    }


def test_range_puts_static_members_first_by_instance() -> None:
    members = {"a": spec(A), "z": spec(A, instance="i1"), "y": spec(A, instance="i2")}
    assert assign_range(members, {A: 3}) == {
        "z": parts(a={0}),
        "y": parts(a={1}),
        "a": parts(a={2}),
    }


def test_range_with_more_members_than_partitions_leaves_some_without() -> None:
    members = {name: spec(A) for name in ("m1", "m2", "m3")}
    assert assign_range(members, {A: 1}) == {"m1": parts(a={0}), "m2": {}, "m3": {}}


# ---- uniform ----


def test_uniform_spreads_every_topic() -> None:
    members = {"m1": spec(A, B), "m2": spec(A, B)}
    assert assign_uniform(members, {A: 2, B: 2}) == {
        "m1": parts(a={0}, b={0}),
        "m2": parts(a={1}, b={1}),
    }


def test_uniform_leaves_a_balanced_group_as_it_is() -> None:
    members = {"m1": spec(A, target=parts(a={0, 3})), "m2": spec(A, target=parts(a={1, 2}))}
    assert assign_uniform(members, {A: 4}) == {"m1": parts(a={0, 3}), "m2": parts(a={1, 2})}


def test_uniform_moves_only_what_a_new_member_gets() -> None:
    members = {
        "m1": spec(A, target=parts(a={0, 1, 2})),
        "m2": spec(A, target=parts(a={3, 4, 5})),
        "m3": spec(A),
    }
    target = assign_uniform(members, {A: 6})
    assert loads(target) == [2, 2, 2]
    assert moved(members, target) == 2


def test_uniform_gives_what_a_leaver_had_to_the_others() -> None:
    members = {"m1": spec(A, target=parts(a={0, 1})), "m2": spec(A, target=parts(a={2, 3}))}
    target = assign_uniform(members, {A: 6})
    assert loads(target) == [3, 3]
    assert moved(members, target) == 0


def test_uniform_lets_those_that_have_more_keep_one_more() -> None:
    """Five partitions: whoever has three of them keeps three."""
    members = {"m1": spec(A, target=parts(a={0, 1})), "m2": spec(A, target=parts(a={2, 3, 4}))}
    assert moved(members, assign_uniform(members, {A: 5})) == 0


def test_uniform_with_new_partitions_moves_nothing() -> None:
    members = {"m1": spec(A, target=parts(a={0})), "m2": spec(A, target=parts(a={1}))}
    target = assign_uniform(members, {A: 6})
    assert loads(target) == [3, 3]
    assert moved(members, target) == 0


def test_uniform_forgets_topics_that_nobody_wants_or_that_are_gone() -> None:
    members = {"m1": spec(A, target=parts(a={0}, b={0})), "m2": spec(A, target=parts(c={0}))}
    assert assign_uniform(members, {A: 2}) == {"m1": parts(a={0}), "m2": parts(a={1})}


def test_uniform_gives_a_member_with_less_choice_more_of_it() -> None:
    members = {"m1": spec(A), "m2": spec(A, B)}
    assert assign_uniform(members, {A: 2, B: 2}) == {"m1": parts(a={0, 1}), "m2": parts(b={0, 1})}


def test_uniform_finds_a_way_through_a_member_in_between() -> None:
    """m1 and m3 have no topic in common: m2 takes one of a and gives one of b."""
    members = {
        "m1": spec(A, target=parts(a={0, 1, 2, 3, 4})),
        "m2": spec(A, B, target=parts(b={0, 1, 2, 3})),
        "m3": spec(B, target=parts(b={4, 5, 6})),
    }
    target = assign_uniform(members, {A: 5, B: 7})
    assert loads(target) == [4, 4, 4]
    assert moved(members, target) == 2


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_nobody_and_nothing(assignor: str) -> None:
    assert ASSIGNORS[assignor]({}, {A: 3}) == {}
    assert ASSIGNORS[assignor]({"m1": spec()}, {}) == {"m1": {}}


# ---- for all ----

TOPICS = [letter.encode() * 16 for letter in "abcd"]


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """Members with any subscriptions, whose past is an assignment: every partition with one of them
    at most, wanted or not.
    """
    counts = {topic: draw(st.integers(0, 8)) for topic in TOPICS[: draw(st.integers(1, 4))]}
    size = draw(st.integers(1, 6))
    alike = draw(st.booleans())
    everything = frozenset(counts)
    wanted = [
        everything if alike else draw(st.frozensets(st.sampled_from(sorted(counts))))
        for _ in range(size)
    ]
    targets: list[dict[bytes, set[int]]] = [{} for _ in range(size)]
    for topic in TOPICS:
        for index in range(counts.get(topic, 0) + 2):
            owner = draw(st.integers(-1, size - 1))
            if owner >= 0:
                targets[owner].setdefault(topic, set()).add(index)
    members = {
        f"m{number}": MemberSpec(
            wanted[number], None, {t: frozenset(rows) for t, rows in targets[number].items()}
        )
        for number in range(size)
    }
    return members, {
        topic: counts[topic] for topic in counts if any(topic in row for row in wanted)
    }


@settings(deadline=None, max_examples=200)
@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_goes_to_one_member_that_wants_it(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], assignor: str
) -> None:
    members, counts = group
    target = ASSIGNORS[assignor](members, counts)
    assert set(target) == set(members)
    assigned = [place for partitions in target.values() for place in places(partitions)]
    assert sorted(assigned) == sorted(
        (t, index) for t, count in counts.items() for index in range(count)
    )
    assert all(set(partitions) <= members[name].topics for name, partitions in target.items())


@settings(deadline=None, max_examples=200)
@given(groups())
def test_uniform_cannot_be_more_even(group: tuple[dict[str, MemberSpec], dict[bytes, int]]) -> None:
    """Nobody that has two more than another can give it something, not even through others."""
    members, counts = group
    target = assign_uniform(members, counts)
    for name in members:
        for other in _reachable(name, members, target):
            assert len(places(target[name])) <= len(places(target[other])) + 1


def _reachable(name: str, members: Mapping[str, MemberSpec], target: Target) -> set[str]:
    seen, todo = {name}, [name]
    while todo:
        topics = set(target[todo.pop()])
        new = {other for other in members if members[other].topics & topics} - seen
        seen |= new
        todo += new
    return seen


@settings(deadline=None, max_examples=200)
@given(groups())
def test_uniform_asked_again_changes_nothing(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    target = assign_uniform(members, counts)
    again = {name: MemberSpec(row.topics, None, target[name]) for name, row in members.items()}
    assert assign_uniform(again, counts) == target


@settings(deadline=None, max_examples=200)
@given(groups())
def test_uniform_moves_no_more_than_quotas_demand(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    """With equal subscriptions, only what members have beyond their quota is taken from them."""
    members, counts = group
    if len({row.topics for row in members.values()}) > 1:
        return
    kept = {
        name: {p for p in places(row.target) if p[0] in row.topics and p[1] < counts[p[0]]}
        for name, row in members.items()
    }
    each, extra = divmod(sum(counts.values()), len(members))
    beyond = sorted((max(len(rows) - each, 0) for rows in kept.values()), reverse=True)
    needed = sum(more - (position < extra and more > 0) for position, more in enumerate(beyond))
    target = assign_uniform(members, counts)
    assert sum(len(kept[name] - places(target[name])) for name in members) == needed


@settings(deadline=None, max_examples=300)
@given(groups())
def test_uniform_with_different_subscriptions_is_as_even_as_when_everybody_is_looked_at_for_every_step(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    if len({row.topics for row in members.values()}) == 1:
        return
    readers: dict[bytes, list[str]] = {}
    for name in sorted(members):
        for topic in members[name].topics:
            readers.setdefault(topic, []).append(name)
    assigned: slow_balance.Assigned = {name: {} for name in sorted(members)}
    for name, row in sorted(members.items()):
        for topic, index in sorted(places(row.target)):
            if topic in row.topics and index < counts[topic]:
                assigned[name].setdefault(topic, set()).add(index)
    slow = {name: sum(map(len, topics.values())) for name, topics in assigned.items()}
    slow_balance.fill(counts, assigned, slow, readers)
    slow_balance.balance(assigned, slow, readers)
    assert loads(assign_uniform(members, counts)) == sorted(slow.values())


def test_a_crowd_with_different_subscriptions_is_even_within_each_topic() -> None:
    """Everybody that has more than others want is looked at once, not once for
    each of the others.
    """
    members = {f"a{index:04}": spec(A) for index in range(1500)}
    members |= {f"b{index:04}": spec(B) for index in range(1500)}
    members["c"] = spec(A, B)
    target = assign_uniform(members, {A: 6000, B: 150})
    for letter in "ab":
        found = loads({name: target[name] for name in members if name.startswith(letter)})
        assert found[-1] - found[0] <= 1
