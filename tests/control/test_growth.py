"""Replicas for topics that were made when the cluster was small."""

from __future__ import annotations

from collections import Counter

from millstream.control.growth import grown
from millstream.control.image import TopicImage
from millstream.control.znodes import Assignment


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
