"""Which brokers are registered: seen once, and not unregistered by an operator since. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerRegistration


def registered_with(image: ClusterImage, live: Iterable[BrokerRegistration]) -> dict[int, BrokerRegistration]:
    """Return the registered brokers once these live ones are among them.

    An earlier version wrote no such list. Then the brokers that the last controller saw, and those that have replicas, are
    registered: they may be away for the upgrade.
    """
    known = dict(image.registered)
    if not known:
        holders = {
            node for topic in image.topics.values() for nodes in topic.replicas.values() for node in nodes
        }
        known = {node: BrokerRegistration(node, ()) for node in holders | image.broker_epochs.keys()}
    return known | {broker.node_id: broker for broker in live}
