"""The image: what nodes make of it, what each changes, and back to nodes again."""

from __future__ import annotations

import random

from millstream.control import znodes
from millstream.control.image import NOT_A_TOPIC, Change, ClusterImage, NodeData
from millstream.control.image_difference import difference
from millstream.control.znodes import Assignment, BrokerEndpoint, BrokerRegistration, PartitionState
from millstream.core.types import TopicPartition

UNSERVED = frozenset({TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 7)})
ID, OTHER = b"i" * 16, b"o" * 16
BROKER = BrokerRegistration(
    3,
    (BrokerEndpoint("PLAINTEXT", "::1", 9092), BrokerEndpoint("OUTSIDE", "h", 19092, "SASL_SSL")),
    "r1",
    "x",
    77,
)


def state_node(index: int, state: PartitionState) -> NodeData:
    data = znodes.encode_partition_state(state)
    return NodeData(znodes.partition_state_path("t", index), data, state.partition_epoch)


def full_image() -> ClusterImage:
    image = ClusterImage()
    moving = {1: Assignment((1, 2, 0), adding=(2,), removing=(0,))}
    for path, data, version in [
        NodeData(znodes.CLUSTER_ID, znodes.encode_cluster_id("c")),
        NodeData(znodes.FEATURES, znodes.encode_features({"group.version": 1}, 4)),
        NodeData(znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(0, 1000, 1999)),
        NodeData(znodes.STOPPING, znodes.encode_stopping({3})),
        NodeData(znodes.offline_path(3), znodes.encode_offline(UNSERVED)),
        NodeData(znodes.broker_path(3), znodes.encode_broker(BROKER, now_ms=5), 77),
        NodeData(znodes.broker_config_path("3"), znodes.encode_config({"a": "b"})),
        NodeData(znodes.topic_path("t"), znodes.encode_topic(ID, {0: (0, 1), 1: (1, 2, 0)}, moving.items())),
        state_node(0, PartitionState(1, 4, (1,), 2, 9)),
        state_node(1, PartitionState(-1, 5, (0, 1), 2, 3)),
        NodeData(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "1"})),
        NodeData(znodes.deleted_topic_path("u"), znodes.encode_deleted_topic([OTHER])),
    ]:
        image.apply(path, data, version)
    return image


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


def test_the_difference_of_two_images_is_what_a_broker_has_to_look_at():
    old, new = full_image(), full_image()
    assert difference(old, new) == []
    new.apply(*state_node(0, PartitionState(1, 5, (1,), 2, 10)))
    assert difference(old, new) == [Change("t", 0)]
    new.apply(znodes.topic_config_path("t"), None)
    assert difference(old, new) == [Change("t")]
    new.apply(znodes.topic_path("v"), znodes.encode_topic(OTHER, {0: (0,)}))
    new.apply(znodes.broker_path(3), None)
    assert difference(old, new) == [NOT_A_TOPIC, Change("t"), Change("v")]
    assert difference(new, old) == [NOT_A_TOPIC, Change("v"), Change("t")]


def test_an_image_that_becomes_another_is_seen_by_all_who_hold_it():
    held, new = ClusterImage(), full_image()
    held.become(new)
    assert held == new
