"""More replicas for topics that were created when the cluster was small."""

from __future__ import annotations

from collections import Counter

from millstream.control import znodes
from millstream.control.growth import expanded_replicas, kept_small_after
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.znodes import Assignment
from millstream.core.types import TopicPartition


def topic(
    *replicas: tuple[int, ...], reassigning: dict[int, Assignment] | None = None
) -> TopicImage:
    return TopicImage("t", b"", dict(enumerate(replicas)), reassigning=reassigning or {})


def test_new_replicas_go_to_the_least_loaded_brokers():
    expanded = expanded_replicas(topic(*[(0,)] * 6), 3, [0, 1, 2, 3])
    assert all(0 in nodes and len(set(nodes)) == 3 for nodes in expanded.values())
    load = Counter(node for nodes in expanded.values() for node in nodes)
    assert load == {0: 6, 1: 4, 2: 4, 3: 4}


def test_preferred_leaders_are_spread_over_new_brokers():
    """A single broker becomes a cluster step by step."""
    two = expanded_replicas(topic(*[(0,)] * 12), 2, [0, 1])
    assert Counter(nodes[0] for nodes in two.values()) == {0: 6, 1: 6}
    three = expanded_replicas(topic(*two.values()), 3, [0, 1, 2])
    assert Counter(nodes[0] for nodes in three.values()) == {0: 4, 1: 4, 2: 4}
    with_broker_down = expanded_replicas(topic((0, 1)), 3, [1, 2, 3])
    assert with_broker_down == {0: (1, 0, 2)}, "a broker that is down is not preferred leader"


def test_partitions_with_enough_replicas_or_reassigning_are_skipped():
    reassigning = {1: Assignment((0, 1, 2), adding=(1, 2))}
    assert expanded_replicas(topic((0, 1, 2), (0,), reassigning=reassigning), 3, [0, 1, 2]) == {}


def test_too_few_brokers_add_no_replicas():
    assert expanded_replicas(topic((0,)), 3, [0, 1]) == {}


def test_internal_topic_with_reduced_replicas_stays_small_until_increased():
    offsets, orders = topic((0, 1, 2), (1, 2, 0)), topic((0, 1, 2))
    offsets.name, offsets.topic_id, orders.name = "__consumer_offsets", bytes(16), "orders"
    image = ClusterImage(topics={topic.name: topic for topic in (offsets, orders)})
    first, second = TopicPartition(offsets.name, 0), TopicPartition(offsets.name, 1)
    assert (
        kept_small_after(image, {first: (2, 1, 3), TopicPartition("orders", 0): (0,)})
        == frozenset()
    )
    assert kept_small_after(image, {first: (0, 1)}) == {offsets.topic_id}
    image.apply(znodes.KEPT_SMALL, znodes.encode_kept_small([offsets.topic_id]))
    offsets.replicas.update({0: (0, 1), 1: (1, 2)})
    assert kept_small_after(image, {first: (0, 3)}) == {offsets.topic_id}, "as many as before"
    assert kept_small_after(image, {first: (0, 1, 2)}) == {offsets.topic_id}, (
        "one of two partitions"
    )
    assert kept_small_after(image, {first: (0, 1, 2), second: (1, 2, 0)}) == frozenset()


def test_cancelled_growth_keeps_an_internal_topic_small():
    offsets = topic((0, 1, 2), reassigning={0: Assignment((0, 1, 2), adding=(1, 2))})
    offsets.name, offsets.topic_id = "__consumer_offsets", bytes(16)
    image = ClusterImage(topics={offsets.name: offsets})
    assert kept_small_after(image, {TopicPartition(offsets.name, 0): None}) == {offsets.topic_id}
    image.kept_small = frozenset([offsets.topic_id])
    # A cancelled reduction ends that.
    offsets.reassigning[0] = Assignment((0, 1, 2), removing=(1, 2))
    assert kept_small_after(image, {TopicPartition(offsets.name, 0): None}) == frozenset()
