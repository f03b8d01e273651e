"""Plans that spread partitions: even, on different racks, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.admin.reassignment_plan import moves, spread
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition

Plan = Mapping[TopicPartition, tuple[int, ...]]


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", index): nodes for index, nodes in enumerate(replicas)}


def test_even_assignment_stays():
    current = partitions((0, 1), (1, 2), (2, 0))
    assert spread(current, [0, 1, 2]) == current


def test_new_broker_gets_its_share_with_the_fewest_moves():
    current = partitions(*[((i % 3), (i + 1) % 3) for i in range(12)])
    planned = spread(current, [0, 1, 2, 3])
    load = Counter(node for nodes in planned.values() for node in nodes)
    assert set(load.values()) == {6}
    moved = sum(len(set(nodes) - set(current[tp])) for tp, nodes in planned.items())
    assert moved == 6
    led = Counter(nodes[0] for nodes in planned.values())
    assert max(led.values()) - min(led.values()) <= 1


def test_removed_broker_has_no_replicas_left():
    current = partitions((0, 1, 3), (1, 3, 2), (3, 0, 1))
    assert all(3 not in nodes for nodes in spread(current, [0, 1, 2]).values())


def test_replicas_stay_on_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    current = partitions((0, 2), (0, 2), (0, 2), (0, 2))
    for nodes in spread(current, [0, 1, 2, 3], racks).values():
        assert {racks[node] for node in nodes} == {"a", "b"}


def test_topics_of_one_broker_get_replicas_on_new_brokers():
    current = partitions((0,), (0,), (0,), (0,), (0,), (0,))
    planned = spread(current, [0, 1, 2, 3], factor=3)
    assert all(len(set(nodes)) == 3 for nodes in planned.values())
    load = Counter(node for nodes in planned.values() for node in nodes)
    led = Counter(nodes[0] for nodes in planned.values())
    assert max(load.values()) - min(load.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1


def test_new_replicas_go_to_racks_without_one():
    racks = {0: "a", 1: "a", 2: "b"}
    assert set(spread(partitions((0,)), [0, 1, 2], racks, factor=2)[TopicPartition("t", 0)]) == {
        0,
        2,
    }


def test_excess_replicas_are_dropped():
    current = partitions((0, 1, 2), (0, 1, 2), (3, 0, 1))
    planned = spread(current, [0, 1, 2], factor=2)
    assert all(len(set(nodes)) == 2 and 3 not in nodes for nodes in planned.values())
    assert sum(len(set(nodes) - set(current[tp])) for tp, nodes in planned.items()) <= 1
    with pytest.raises(ClientError, match="4 replicas do not fit on 3 brokers"):
        spread(current, [0, 1, 2], factor=4)


def test_leaders_of_each_topic_are_spread_independently():
    """An idle topic, such as the offsets topic, must not compensate for a busy one."""
    idle = {TopicPartition("idle", index): (1 + index % 2, 0) for index in range(10)}
    planned = spread({**idle, **partitions((0, 1, 2), (0, 1, 2), (0, 1, 2))}, [0, 1, 2])
    assert sorted(nodes[0] for tp, nodes in planned.items() if tp.topic == "t") == [0, 1, 2]


def test_too_few_brokers_are_rejected():
    with pytest.raises(ClientError, match="3 replicas do not fit on 2 brokers"):
        spread(partitions((0, 1, 2)), [0, 1])


def test_only_differences_are_moves():
    current = partitions((0, 1), (1, 2))
    assert moves(current, {**current, TopicPartition("t", 1): (2, 1)}) == {
        TopicPartition("t", 1): (2, 1)
    }


def test_partitions_of_a_small_topic_do_not_all_move_to_a_new_broker():
    """The total alone would be as even with the whole small topic on the new broker."""
    large = {TopicPartition("large", index): (index % 2,) for index in range(8)}
    small = {TopicPartition("small", index): (index % 2,) for index in range(4)}
    planned = spread({**large, **small}, [0, 1, 2])
    assert spreads_of(planned, [0, 1, 2]) == {"large": 1, "small": 1}
    assert sum(nodes == (2,) for tp, nodes in planned.items() if tp.topic == "small") == 1
    assert spread_of(Counter(node for nodes in planned.values() for node in nodes), [0, 1, 2]) == 0
    assert len(moves({**large, **small}, planned)) == 4


def test_leader_on_removed_broker_is_dropped_before_a_replica_moves():
    current = partitions((3, 0, 1))
    assert set(spread(current, [0, 1, 2], factor=2)[TopicPartition("t", 0)]) == {0, 1}


def test_dropped_replicas_are_those_that_share_a_rack():
    racks = {0: "a", 1: "a", 2: "b"}
    assert spread(partitions((0, 1, 2)), [0, 1, 2], racks, factor=2) == partitions((0, 2))


@pytest.mark.timeout(120)  # it takes about 2 s of CPU
def test_plan_for_many_topics_ends():
    current = {
        TopicPartition(f"t{topic}", index): tuple(
            (topic + index + replica) % 8 for replica in range(3)
        )
        for topic in range(300)
        for index in range(1 + topic % 12)
    }
    planned = spread(current, range(10))
    assert set(spreads_of(planned, range(10)).values()) <= {0, 1}


def spread_of(counts: Counter[int], brokers: Iterable[int]) -> int:
    values = [counts[node] for node in brokers]
    return max(values) - min(values)


def spreads_of(plan: Plan, brokers: Iterable[int]) -> dict[str, int]:
    """Return the difference between the most and the fewest replicas per broker, by topic."""
    return {
        topic: spread_of(Counter(node for tp in tps for node in plan[tp]), brokers)
        for topic, tps in by_topic(plan).items()
    }


def by_topic(plan: Plan) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for tp in sorted(plan):
        topics.setdefault(tp.topic, []).append(tp)
    return topics


def moved(current: Plan, planned: Plan) -> int:
    return sum(len(set(nodes) - set(current[tp])) for tp, nodes in planned.items())


def fewest_moves(current: Plan, brokers: Sequence[int]) -> int:
    """Try every plan that is even per topic and in total, and return the fewest moves of any."""
    totals = {(0,) * len(brokers): 0}
    for tps in by_topic(current).values():
        topic = fewest_moves_of_topic([current[tp] for tp in tps], brokers)
        combined: dict[tuple[int, ...], int] = {}
        for before, cost in totals.items():
            for counts, more in topic.items():
                sums = tuple(map(add, before, counts))
                combined[sums] = min(combined.get(sums, cost + more), cost + more)
        totals = combined
    return min(cost for sums, cost in totals.items() if max(sums) - min(sums) <= 1)


def fewest_moves_of_topic(
    replicas: Sequence[tuple[int, ...]], brokers: Sequence[int]
) -> dict[tuple[int, ...], int]:
    counts = {(0,) * len(brokers): 0}
    for nodes in replicas:
        following: dict[tuple[int, ...], int] = {}
        for before, cost in counts.items():
            for chosen in combinations(brokers, len(nodes)):
                sums = tuple(
                    count + (node in chosen) for count, node in zip(before, brokers, strict=True)
                )
                more = cost + len(set(chosen) - set(nodes))
                following[sums] = min(following.get(sums, more), more)
        counts = following
    return {sums: cost for sums, cost in counts.items() if max(sums) - min(sums) <= 1}


def plans(
    topics: int, partitions: int, nodes: int, factors: st.SearchStrategy[int]
) -> st.SearchStrategy:
    """Generate replicas for several topics, with one replication factor per plan."""

    def topic_lists(factor: int) -> st.SearchStrategy:
        replicas = st.permutations(range(nodes)).map(lambda order: tuple(order[:factor]))
        return st.lists(
            st.lists(replicas, min_size=1, max_size=partitions), min_size=1, max_size=topics
        )

    return factors.flatmap(topic_lists).map(
        lambda drawn: {
            TopicPartition(f"t{topic}", index): replicas
            for topic, rows in enumerate(drawn)
            for index, replicas in enumerate(rows)
        }
    )


@given(plans(5, 8, 6, st.integers(1, 3)), st.sets(st.integers(0, 8), min_size=3))
def test_any_plan_is_even_per_topic_then_in_total_then_by_leaders(current, brokers):
    planned = spread(current, sorted(brokers))
    assert planned.keys() == current.keys()
    for tp, nodes in planned.items():
        assert len(set(nodes)) == len(nodes) == len(current[tp]) and set(nodes) <= brokers
    assert max(spreads_of(planned, brokers).values()) <= 1
    assert spread_of(Counter(node for nodes in planned.values() for node in nodes), brokers) <= 1
    leaders = {tp: nodes[:1] for tp, nodes in planned.items()}
    assert max(spreads_of(leaders, brokers).values()) <= 1
    assert spread_of(Counter(nodes[0] for nodes in planned.values()), brokers) <= 1


@given(plans(3, 4, 5, st.integers(1, 2)), st.sets(st.integers(0, 5), min_size=2, max_size=4))
def test_any_plan_has_the_fewest_moves_of_an_even_plan(current, brokers):
    assert moved(current, spread(current, sorted(brokers))) == fewest_moves(
        current, sorted(brokers)
    )


@given(plans(4, 6, 6, st.integers(1, 3)), st.sets(st.integers(0, 8), min_size=3))
def test_planning_again_changes_nothing(current, brokers):
    planned = spread(current, sorted(brokers))
    assert spread(planned, sorted(brokers)) == planned


@given(plans(4, 6, 6, st.integers(1, 4)), st.integers(1, 4))
def test_any_change_of_the_replication_factor_stays_even(current, factor):
    planned = spread(current, range(6), factor=factor)
    assert all(len(set(nodes)) == len(nodes) == factor for nodes in planned.values())
    assert max(spreads_of(planned, range(6)).values()) <= 1
    assert spread_of(Counter(node for nodes in planned.values() for node in nodes), range(6)) <= 1


@given(
    plans(4, 6, 6, st.integers(1, 3)),
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=6, max_size=6),
)
def test_no_partition_gets_more_replicas_in_one_rack(current, rack_names):
    racks = dict(enumerate(rack_names))
    planned = spread(current, range(6), racks)
    for tp, nodes in planned.items():
        assert len(set(nodes)) == len(nodes) == len(current[tp])
        assert shared_racks(nodes, racks) <= shared_racks(current[tp], racks)


@given(plans(4, 6, 6, st.integers(1, 3)))
def test_plans_are_even_within_racks_of_the_same_size(current):
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    planned = spread(current, range(6), racks)
    assert max(spreads_of(planned, range(6)).values()) <= 1


def shared_racks(nodes: Sequence[int], racks: Mapping[int, str | None]) -> int:
    """Count replicas in a rack that has another one of the partition."""
    named = [racks[node] for node in nodes if racks[node] is not None]
    return len(named) - len(set(named))
