"""The cluster: its id, its controller, its brokers and the addresses they advertise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.client.admin import Admin


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class Cluster:
    id: str
    controller: int | None
    brokers: tuple[Broker, ...]


class ClusterAdmin:
    """``admin.cluster``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def describe(self) -> Cluster:
        timeout_s = self._admin.connection.timeout_s
        future = self._admin.client.describe_cluster(request_timeout=timeout_s)
        found = self._admin.wait(future, doing="describe the cluster")
        brokers = sorted(
            (Broker(node.id, node.host, node.port, node.rack) for node in found.nodes), key=lambda one: one.id
        )
        controller = (
            found.controller.id if found.controller is not None and found.controller.id >= 0 else None
        )
        return Cluster(found.cluster_id or "", controller, tuple(brokers))
