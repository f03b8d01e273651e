"""The live brokers of the cluster, at the addresses that clients of a listener use."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from millstream.control.image import ClusterImage
from millstream.wire.node_endpoints import NodeEndpoint


class Node(NamedTuple):
    """A broker as clients see it through one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Nodes:
    """Looks brokers up in the image."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def reached_by(self, listener: str) -> list[Node]:
        """Return all live brokers that have this listener."""
        nodes = (self.get(node_id, listener) for node_id in sorted(self._image.brokers))
        return [node for node in nodes if node is not None]

    def get(self, node_id: int, listener: str) -> Node | None:
        """Return a broker; None if it is not live or does not have this listener."""
        broker = self._image.brokers.get(node_id)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is None or endpoint is None:
            return None
        return Node(node_id, endpoint.host, endpoint.port, broker.rack)

    def leaders(self, node_ids: Collection[int], listener: str) -> list[NodeEndpoint]:
        """Return the addresses of leaders, for a client at the wrong broker (KIP-951).

        The client then needs no metadata request.
        """
        nodes = (self.get(node_id, listener) for node_id in sorted(node_ids))
        return [NodeEndpoint(*node) for node in nodes if node is not None]

    def racks(self) -> dict[int, str]:
        """Return the racks of the brokers that have one."""
        return {node: broker.rack for node, broker in self._image.brokers.items() if broker.rack}
