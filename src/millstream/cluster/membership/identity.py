"""Whether what the coordination service holds is this broker's cluster, and not older than what the broker has seen of it.

The data of a ZooKeeper can be lost, deleted by hand, or put back from a copy while brokers run. Whoever took an empty tree for the cluster would
delete every topic that is not in it. So no broker runs for controller or registers before it has looked, and what is found missing is waited for.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.control import znodes
from millstream.ports.coordination import Check, Coordination, CoordinationError, Node


class NotThisCluster(CoordinationError):
    """Nothing may be taken from there, and nothing written."""


class Found(NamedTuple):
    """The tree of this cluster: ``same`` is to be part of what is written there; then the epoch of its last controller, and the node that says so."""

    same: Check
    epoch: int
    epoch_node: Node | None


class ClusterIdentity:
    """``cluster_id`` is that of the broker's data directories."""

    def __init__(self, coordination: Coordination, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self._coordination = coordination
        self._seen_epoch = 0

    def saw(self, controller_epoch: int) -> None:
        """A controller of this cluster has it; it was in the tree before anybody could tell."""
        self._seen_epoch = max(self._seen_epoch, controller_epoch)

    async def look(self) -> Found:
        """What is there. Raises NotThisCluster where it is not to be used."""
        node = await self._coordination.get(znodes.CLUSTER_ID)
        if node is None:
            raise NotThisCluster(
                f"there is no cluster in ZooKeeper, where {self.cluster_id} was. Was its data lost, or deleted? Put it back: nothing is changed here until then"
            )
        try:
            mark = znodes.decode_cluster_mark(node.data)
        except UNREADABLE as error:
            raise unreadable(znodes.CLUSTER_ID, error) from None
        if mark.cluster_id != self.cluster_id or mark.migrating:
            raise NotThisCluster(
                f"in ZooKeeper is the cluster {mark.cluster_id}, where {self.cluster_id} was: nothing is taken from there"
            )
        return Found(Check(znodes.CLUSTER_ID, node.version), *await self._last_epoch())

    async def _last_epoch(self) -> tuple[int, Node | None]:
        node = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        try:
            there = znodes.decode_controller_epoch(node.data) if node is not None else 0
        except UNREADABLE as error:
            raise unreadable(znodes.CONTROLLER_EPOCH, error) from None
        if there < self._seen_epoch:
            raise NotThisCluster(
                f"the metadata in ZooKeeper is older than what this broker has seen of it (controller epoch {there}, and {self._seen_epoch} before). "
                "Was it put back from a copy? Nothing is taken from there; brokers that are started anew go by it"
            )
        return there, node


# What decoding raises for a node that is not what it should be: whoever puts nodes back makes them first and fills them then.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


def unreadable(path: str, error: Exception) -> NotThisCluster:
    return NotThisCluster(f"the node {path} in ZooKeeper cannot be read: {error!r}")
