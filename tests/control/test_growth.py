"""Replicas for topics that were made when the cluster was small."""

from __future__ import annotations

from collections import Counter

from millstream.control import znodes
from millstream.control.growth import grown, kept_small
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.znodes import Assignment
from millstream.core.types import TopicPartition


def topic(*replicas: tuple[int, ...], moving: dict[int, Assignment] | None = None) -> TopicImage:
    return TopicImage("t", b"", dict(enumerate(replicas)), moving=moving or {})


def test_new_replicas_go_where_the_fewest_are():
    wanted = grown(topic(*[(0,)] * 6), 3, [0, 1, 2, 3])
    assert all(0 in nodes and len(set(nodes)) == 3 for nodes in wanted.values())
    load = Counter(node for nodes in wanted.values() for node in nodes)
    assert load == {0: 6, 1: 4, 2: 4, 3: 4}


def test_the_new_ones_lead_their_share():
    """Where a single broker becomes a cluster, step by step."""
    two = grown(topic(*[(0,)] * 12), 2, [0, 1])
    assert Counter(nodes[0] for nodes in two.values()) == {0: 6, 1: 6}
    three = grown(topic(*two.values()), 3, [0, 1, 2])
    assert Counter(nodes[0] for nodes in three.values()) == {0: 4, 1: 4, 2: 4}
    away = grown(topic((0, 1)), 3, [1, 2, 3])
    assert away == {0: (1, 0, 2)}, "who is away is not meant to lead"


def test_what_has_enough_or_is_on_its_way_is_left_alone():
    moving = {1: Assignment((0, 1, 2), adding=(1, 2))}
    assert grown(topic((0, 1, 2), (0,), moving=moving), 3, [0, 1, 2]) == {}


def test_without_brokers_for_them_nothing_is_done():
    assert grown(topic((0,)), 3, [0, 1]) == {}


def test_who_gives_an_internal_topic_fewer_replicas_means_it_until_he_gives_it_more():
    offsets, orders = topic((0, 1, 2), (1, 2, 0)), topic((0, 1, 2))
    offsets.name, offsets.topic_id, orders.name = "__consumer_offsets", bytes(16), "orders"
    image = ClusterImage(topics={one.name: one for one in (offsets, orders)})
    first, second = TopicPartition(offsets.name, 0), TopicPartition(offsets.name, 1)
    assert kept_small(image, {first: (2, 1, 3), TopicPartition("orders", 0): (0,)}) == frozenset()
    assert kept_small(image, {first: (0, 1)}) == {offsets.topic_id}
    image.apply(znodes.KEPT_SMALL, znodes.encode_kept_small([offsets.topic_id]))
    offsets.replicas.update({0: (0, 1), 1: (1, 2)})
    assert kept_small(image, {first: (0, 3)}) == {offsets.topic_id}, "as many as before"
    assert kept_small(image, {first: (0, 1, 2)}) == {offsets.topic_id}, "one of two partitions"
    assert kept_small(image, {first: (0, 1, 2), second: (1, 2, 0)}) == frozenset()


def test_who_calls_off_what_an_internal_topic_got_by_itself_means_it_too():
    offsets = topic((0, 1, 2), moving={0: Assignment((0, 1, 2), adding=(1, 2))})
    offsets.name, offsets.topic_id = "__consumer_offsets", bytes(16)
    image = ClusterImage(topics={offsets.name: offsets})
    assert kept_small(image, {TopicPartition(offsets.name, 0): None}) == {offsets.topic_id}
    image.kept_small = frozenset([offsets.topic_id])
    offsets.moving[0] = Assignment((0, 1, 2), removing=(1, 2))  # and who calls off a move to fewer
    assert kept_small(image, {TopicPartition(offsets.name, 0): None}) == frozenset()
