"""The cluster image: built from nodes, changed by nodes, and written as nodes."""

from __future__ import annotations

import random

from millstream.control import znodes
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, NodeData
from millstream.control.znodes import Assignment, PartitionState
from support.control.images import BROKER, ID, OTHER, UNSERVED, full_image, state_node


def test_image_is_rebuilt_from_its_nodes():
    image, rebuilt = full_image(), ClusterImage()
    for node in image.nodes(now_ms=5):
        rebuilt.apply(*node)
    assert rebuilt == image
    assert rebuilt.brokers[3] == BROKER
    assert rebuilt.topics["t"].assignment(1) == Assignment((1, 2, 0), adding=(2,), removing=(0,))
    assert rebuilt.topics["t"].assignment(0) == Assignment((0, 1))


def test_broker_that_is_down_is_known_by_its_replicas_and_settings():
    image = full_image()
    assert (set(image.brokers), image.known_brokers()) == ({3}, {0, 1, 2, 3})
    image.apply(znodes.broker_path(3), None)
    assert image.known_brokers() == {0, 1, 2, 3}
    for name, config in {"3": {}, "7": {"a": "b"}, znodes.DEFAULT_BROKER: {"a": "b"}}.items():
        image.apply(znodes.broker_config_path(name), znodes.encode_config(config))
    assert image.known_brokers() == {0, 1, 2, 7}


def test_offline_replicas_are_dropped_when_repaired_or_broker_is_down():
    image = full_image()
    assert image.offline == {3: UNSERVED}
    image.apply(znodes.broker_path(3), None)
    assert image.offline == {}
    assert image.apply(znodes.offline_path(1), znodes.encode_offline(UNSERVED)) is None
    image.apply(znodes.offline_path(1), znodes.encode_offline(()))
    assert image.offline == {}


def test_state_changes_a_partition_and_assignment_changes_the_topic():
    image = full_image()
    assert image.apply(*state_node(0, PartitionState(1, 5, (1,), 2, 10))) == Change("t", 0)
    assert image.apply(znodes.topic_path("t"), znodes.encode_topic(ID, {0: (0, 1)})) == Change("t")
    assert image.apply(znodes.broker_path(3), None) == NOT_A_TOPIC


def test_older_state_is_ignored():
    image = full_image()
    image.apply(*state_node(0, PartitionState(0, 3, (0, 1), 1, 8)))
    assert image.topics["t"].states[0] == PartitionState(1, 4, (1,), 2, 9)


def test_state_without_version_gets_the_next_one():
    image = full_image()
    path = znodes.partition_state_path("t", 0)
    image.apply(path, znodes.encode_partition_state(PartitionState(0, 5, (0, 1))))
    assert image.topics["t"].states[0].partition_epoch == 10


def test_recreated_topic_has_no_state_of_the_old_one():
    image = full_image()
    image.apply(znodes.topic_path("t"), znodes.encode_topic(OTHER, {0: (0,)}))
    assert image.topics["t"].states == {} and image.names_by_id == {OTHER: "t"}


def test_snapshot_of_a_changing_image_is_complete_with_the_changes():
    """A snapshot is read in pages.

    Changes follow it, whether or not the pages have them already.
    """
    for seed in range(50):
        chance, image, rebuilt = random.Random(seed), full_image(), ClusterImage()
        later: list[NodeData] = []
        for node in image.nodes(now_ms=5):
            rebuilt.apply(*node)
            if chance.random() < 0.5:
                index = chance.randrange(2)
                known = image.topics["t"].states[index]
                later.append(
                    state_node(index, PartitionState(0, 9, (0,), 2, known.partition_epoch + 1))
                )
                image.apply(*later[-1])
        for node in later:
            rebuilt.apply(*node)
        assert rebuilt == image


def test_image_is_replaced_in_place():
    held, new = ClusterImage(), full_image()
    held.become(new)
    assert held == new
