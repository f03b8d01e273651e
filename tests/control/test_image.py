"""The image: what nodes make of it, what each changes, and back to nodes again."""

from __future__ import annotations

import random

from millstream.control import znodes
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, NodeData
from millstream.control.znodes import Assignment, PartitionState
from support.control.images import BROKER, ID, OTHER, UNSERVED, full_image, state_node


def test_an_image_is_made_again_from_its_nodes():
    image, again = full_image(), ClusterImage()
    for node in image.nodes(now_ms=5):
        again.apply(*node)
    assert again == image
    assert again.brokers[3] == BROKER
    assert again.topics["t"].assignment(1) == Assignment((1, 2, 0), adding=(2,), removing=(0,))
    assert again.topics["t"].assignment(0) == Assignment((0, 1))


def test_a_broker_that_is_away_is_known_by_its_replicas_and_settings():
    image = full_image()
    assert (set(image.brokers), image.brokers_known()) == ({3}, {0, 1, 2, 3})
    image.apply(znodes.broker_path(3), None)
    assert image.brokers_known() == {0, 1, 2, 3}
    for name, config in {"3": {}, "7": {"a": "b"}, znodes.DEFAULT_BROKER: {"a": "b"}}.items():
        image.apply(znodes.broker_config_path(name), znodes.encode_config(config))
    assert image.brokers_known() == {0, 1, 2, 7}


def test_what_a_broker_cannot_serve_is_known_until_it_can_or_goes():
    image = full_image()
    assert image.offline == {3: UNSERVED}
    image.apply(znodes.broker_path(3), None)
    assert image.offline == {}
    assert image.apply(znodes.offline_path(1), znodes.encode_offline(UNSERVED)) is None
    image.apply(znodes.offline_path(1), znodes.encode_offline(()))
    assert image.offline == {}


def test_a_state_changes_one_partition_and_the_assignment_the_whole_topic():
    image = full_image()
    assert image.apply(*state_node(0, PartitionState(1, 5, (1,), 2, 10))) == Change("t", 0)
    assert image.apply(znodes.topic_path("t"), znodes.encode_topic(ID, {0: (0, 1)})) == Change("t")
    assert image.apply(znodes.broker_path(3), None) == NOT_A_TOPIC


def test_an_older_state_changes_nothing():
    image = full_image()
    image.apply(*state_node(0, PartitionState(0, 3, (0, 1), 1, 8)))
    assert image.topics["t"].states[0] == PartitionState(1, 4, (1,), 2, 9)


def test_without_a_version_a_state_is_the_next():
    image = full_image()
    path = znodes.partition_state_path("t", 0)
    image.apply(path, znodes.encode_partition_state(PartitionState(0, 5, (0, 1))))
    assert image.topics["t"].states[0].partition_epoch == 10


def test_a_topic_made_again_has_nothing_of_the_old_one():
    image = full_image()
    image.apply(znodes.topic_path("t"), znodes.encode_topic(OTHER, {0: (0,)}))
    assert image.topics["t"].states == {} and image.names_by_id == {OTHER: "t"}


def test_nodes_taken_while_the_image_changes_lead_to_the_same_image_with_the_changes():
    """A snapshot is read in pages; what changes meanwhile follows it, whether or not it is in the pages already."""
    for seed in range(50):
        chance, image, again = random.Random(seed), full_image(), ClusterImage()
        later: list[NodeData] = []
        for node in image.nodes(now_ms=5):
            again.apply(*node)
            if chance.random() < 0.5:
                index = chance.randrange(2)
                known = image.topics["t"].states[index]
                later.append(state_node(index, PartitionState(0, 9, (0,), 2, known.partition_epoch + 1)))
                image.apply(*later[-1])
        for node in later:
            again.apply(*node)
        assert again == image


def test_an_image_that_becomes_another_is_seen_by_all_who_hold_it():
    held, new = ClusterImage(), full_image()
    held.become(new)
    assert held == new
