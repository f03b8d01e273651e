"""Checks that the coordination service holds this broker's cluster, and not an older state.

The data of a ZooKeeper can be lost, deleted by hand, or restored from a backup while brokers run. A
broker that took an empty tree for the cluster would delete every topic that is not in it. So no
broker runs for controller or registers before this check, and it waits until missing data is back.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.control import znodes
from millstream.ports.coordination import Check, Coordination, CoordinationError, Node


class NotThisCluster(CoordinationError):
    """The tree must not be used, neither for reading nor for writing."""


class ClusterTree(NamedTuple):
    """The tree of this cluster.

    Writes include ``unchanged``, which fails if the tree is another by then. ``epoch`` is the epoch
    of the last controller, stored in ``epoch_node``.
    """

    unchanged: Check
    epoch: int
    epoch_node: Node | None


class ClusterIdentity:
    """Compares the tree with the cluster id of the broker's data directories."""

    def __init__(self, coordination: Coordination, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self._coordination = coordination
        self._seen_epoch = 0

    def saw(self, controller_epoch: int) -> None:
        """Record the epoch of a controller, which was in the tree before it was known here."""
        self._seen_epoch = max(self._seen_epoch, controller_epoch)

    async def look(self) -> ClusterTree:
        """Return the tree; raise NotThisCluster if it must not be used."""
        node = await self._coordination.get(znodes.CLUSTER_ID)
        if node is None:
            raise NotThisCluster(
                f"ZooKeeper has no cluster where cluster {self.cluster_id} was. If its data was lost or "
                "deleted, restore it: until then this broker changes nothing"
            )
        try:
            mark = znodes.decode_cluster_mark(node.data)
        except UNREADABLE as error:
            raise unreadable(znodes.CLUSTER_ID, error) from None
        if mark.cluster_id != self.cluster_id or mark.migrating:
            raise NotThisCluster(
                f"ZooKeeper has cluster {mark.cluster_id} where {self.cluster_id} was: it is not used"
            )
        return ClusterTree(Check(znodes.CLUSTER_ID, node.version), *await self._last_epoch())

    async def _last_epoch(self) -> tuple[int, Node | None]:
        node = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        try:
            epoch = znodes.decode_controller_epoch(node.data) if node is not None else 0
        except UNREADABLE as error:
            raise unreadable(znodes.CONTROLLER_EPOCH, error) from None
        if epoch < self._seen_epoch:
            raise NotThisCluster(
                "the metadata in ZooKeeper is older than what this broker has seen "
                f"(controller epoch {epoch}, and {self._seen_epoch} before). "
                "If it was restored from a backup, restart the brokers to use it: this one does not"
            )
        return epoch, node


# Errors of decoding a node with unexpected content: tools that restore nodes create them first and
# fill them later.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


def unreadable(path: str, error: Exception) -> NotThisCluster:
    return NotThisCluster(f"cannot read the node {path} in ZooKeeper: {error!r}")
