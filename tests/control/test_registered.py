"""Registered brokers, and their encoding in a node."""

from __future__ import annotations

from millstream.control import znodes
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.registered import registered_with
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration


def broker(node: int, rack: str | None = None) -> BrokerRegistration:
    return BrokerRegistration(node, (BrokerEndpoint("PLAINTEXT", "::1", 9092 + node),), rack)


def test_registered_brokers_survive_encoding():
    brokers = {2: broker(2, "north"), 11: broker(11), 3: BrokerRegistration(3, ())}
    assert znodes.decode_registered(znodes.encode_registered(brokers.values())) == brokers


def test_live_broker_replaces_its_old_registration():
    image = ClusterImage(registered={1: broker(1), 2: broker(2)})
    assert registered_with(image, [broker(2, "south"), broker(4)]) == {
        1: broker(1),
        2: broker(2, "south"),
        4: broker(4),
    }


def test_without_list_known_brokers_and_replica_holders_count():
    image = ClusterImage(broker_epochs={1: 10, 2: 20})
    image.topics["orders"] = TopicImage("orders", b"t" * 16, {0: (1, 5)})
    assert set(registered_with(image, [broker(1)])) == {1, 2, 5}
    image.registered = {1: broker(1)}
    assert set(registered_with(image, [broker(1)])) == {1}, (
        "unregistered brokers do not count, even with replicas"
    )


def test_image_carries_registered_brokers_to_other_brokers():
    image = ClusterImage(brokers={1: broker(1)}, registered={1: broker(1), 2: broker(2)})
    copy = ClusterImage()
    for node in image.nodes(now_ms=0):
        copy.apply(*node)
    assert copy.registered == image.registered
    assert set(copy.registered_brokers()) == {1, 2}
