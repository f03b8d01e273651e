"""The changes between two images."""

from __future__ import annotations

from millstream.control import znodes
from millstream.control.image import NOT_A_TOPIC, Change
from millstream.control.image_difference import difference
from millstream.control.znodes import PartitionState
from support.control.images import OTHER, full_image, state_node


def test_difference_lists_changed_topics_and_partitions():
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
