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
    offsets = "__consumer_offsets"
    image = ClusterImage(topics={name: topic((0, 1, 2), (1, 2, 0)) for name in (offsets, "orders")})
    for name, one in image.topics.items():
        one.name = name
    first, other = TopicPartition(offsets, 0), TopicPartition("orders", 0)
    assert kept_small(image, {first: (2, 1, 3), other: (0,)}) == frozenset()
    assert kept_small(image, {first: None, TopicPartition(offsets, 9): (0,)}) == frozenset()
    image.kept_small = kept_small(image, {first: (0, 1)})
    assert image.kept_small == {offsets}
    assert kept_small(image, {first: (0, 1, 3)}) == {offsets}, "as many as before"
    assert kept_small(image, {first: (0, 1, 2, 3)}) == frozenset()
    image.apply(znodes.KEPT_SMALL, znodes.encode_kept_small(()))
    assert image.kept_small == frozenset()
