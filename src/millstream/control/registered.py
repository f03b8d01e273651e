"""Registered brokers: those that registered once and that no operator has unregistered."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerRegistration


def registered_with(
    image: ClusterImage, live: Iterable[BrokerRegistration]
) -> dict[int, BrokerRegistration]:
    """Return the registered brokers, including these live ones.

    Earlier versions wrote no such list. In that case the brokers that the last controller saw, and
    those with replicas, count as registered: they may be down for the upgrade.
    """
    known = dict(image.registered)
    if not known:
        holders = {
            node
            for topic in image.topics.values()
            for nodes in topic.replicas.values()
            for node in nodes
        }
        known = {
            node: BrokerRegistration(node, ()) for node in holders | image.broker_epochs.keys()
        }
    return known | {broker.node_id: broker for broker in live}
