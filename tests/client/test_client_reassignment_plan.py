"""Plans that spread partitions: even, on different racks, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.errors import ClientError
from millstream.client.reassignment_plan import moves, spread
from millstream.core.types import TopicPartition


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", index): nodes for index, nodes in enumerate(replicas)}


def test_what_is_even_already_stays():
    current = partitions((0, 1), (1, 2), (2, 0))
    assert spread(current, [0, 1, 2]) == current


def test_a_new_broker_gets_its_share_and_no_more_moves_than_that():
    current = partitions(*[((i % 3), (i + 1) % 3) for i in range(12)])
    wanted = spread(current, [0, 1, 2, 3])
    load = Counter(node for nodes in wanted.values() for node in nodes)
    assert set(load.values()) == {6}
    moved = sum(len(set(nodes) - set(current[tp])) for tp, nodes in wanted.items())
    assert moved == 6
    led = Counter(nodes[0] for nodes in wanted.values())
    assert max(led.values()) - min(led.values()) <= 1


def test_a_broker_that_is_to_go_has_nothing_left():
    current = partitions((0, 1, 3), (1, 3, 2), (3, 0, 1))
    assert all(3 not in nodes for nodes in spread(current, [0, 1, 2]).values())


def test_replicas_stay_on_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    current = partitions((0, 2), (0, 2), (0, 2), (0, 2))
    for nodes in spread(current, [0, 1, 2, 3], racks).values():
        assert {racks[node] for node in nodes} == {"a", "b"}


def test_topics_of_one_broker_get_replicas_on_those_that_came():
    current = partitions((0,), (0,), (0,), (0,), (0,), (0,))
    wanted = spread(current, [0, 1, 2, 3], factor=3)
    assert all(len(set(nodes)) == 3 for nodes in wanted.values())
    load = Counter(node for nodes in wanted.values() for node in nodes)
    led = Counter(nodes[0] for nodes in wanted.values())
    assert max(load.values()) - min(load.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1


def test_new_replicas_go_to_racks_that_have_none():
    racks = {0: "a", 1: "a", 2: "b"}
    assert set(spread(partitions((0,)), [0, 1, 2], racks, factor=2)[TopicPartition("t", 0)]) == {0, 2}


def test_replicas_that_are_too_many_go():
    current = partitions((0, 1, 2), (0, 1, 2), (3, 0, 1))
    wanted = spread(current, [0, 1, 2], factor=2)
    assert all(len(set(nodes)) == 2 and 3 not in nodes for nodes in wanted.values())
    assert sum(len(set(nodes) - set(current[tp])) for tp, nodes in wanted.items()) <= 1
    with pytest.raises(ClientError, match="4 replicas do not fit on 3 brokers"):
        spread(current, [0, 1, 2], factor=4)


def test_the_leaders_of_each_topic_are_spread_whatever_the_others_have():
    """One that is idle, like the offsets of groups, would make up for all leaders of a busy one at the same broker."""
    idle = {TopicPartition("idle", index): (1 + index % 2, 0) for index in range(10)}
    wanted = spread({**idle, **partitions((0, 1, 2), (0, 1, 2), (0, 1, 2))}, [0, 1, 2])
    assert sorted(nodes[0] for tp, nodes in wanted.items() if tp.topic == "t") == [0, 1, 2]


def test_too_few_brokers_are_told():
    with pytest.raises(ClientError, match="3 replicas do not fit on 2 brokers"):
        spread(partitions((0, 1, 2)), [0, 1])


def test_only_what_differs_is_a_move():
    current = partitions((0, 1), (1, 2))
    assert moves(current, {**current, TopicPartition("t", 1): (2, 1)}) == {TopicPartition("t", 1): (2, 1)}


@given(
    st.integers(1, 3).flatmap(
        lambda factor: st.lists(
            st.permutations(range(6)).map(lambda nodes: tuple(nodes[:factor])), max_size=20
        )
    ),
    st.sets(st.integers(0, 8), min_size=3),
)
def test_any_assignment_becomes_even(replicas, brokers):
    wanted = spread(partitions(*replicas), sorted(brokers))
    load = Counter(dict.fromkeys(brokers, 0))
    for tp, nodes in wanted.items():
        assert len(set(nodes)) == len(replicas[tp.partition]) and set(nodes) <= brokers
        load.update(nodes)
    assert max(load.values()) - min(load.values()) <= 1
