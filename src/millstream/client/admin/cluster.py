"""The cluster: its id, its controller, its brokers and the addresses they advertise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.client.errors import refusal
from millstream.core.errors import ErrorCode
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin


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


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A directory in which a broker stores records.

    The sizes are those of its disk, or None if the broker does not report them.
    """

    broker: int
    path: str
    online: bool
    total_bytes: int | None
    usable_bytes: int | None


class ClusterAdmin:
    """``admin.cluster``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def describe(self) -> Cluster:
        """Return the id, the controller and the live brokers of the cluster."""
        doing = "describe the cluster"
        described = self._admin.retries.run(
            lambda limit_s: self._admin.wait(
                self._admin.client.describe_cluster(request_timeout=limit_s), doing=doing
            ),
            doing=doing,
        )
        brokers = sorted(
            (Broker(node.id, node.host, node.port, node.rack) for node in described.nodes),
            key=lambda broker: broker.id,
        )
        controller = (
            described.controller.id
            if described.controller is not None and described.controller.id >= 0
            else None
        )
        return Cluster(described.cluster_id or "", controller, tuple(brokers))

    def unregister(self, broker: int) -> None:
        """Remove a broker that was shut down permanently, so that new topics get no replicas on it.

        Raises ClientError while the broker is running. A broker that is not registered is no error.
        """
        doing = f"unregister broker {broker}"

        def unregister_once() -> None:
            response = self._admin.protocol.ask(UnregisterBrokerRequest(broker_id=broker))
            if response.error_code not in (ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
                raise refusal(response.error_code, doing=doing, reason=response.error_message)

        self._admin.protocol.patiently(unregister_once, doing=doing)

    def log_directories(self, broker: int) -> list[LogDirectory]:
        """Return the directories of a broker, and how full their disks are."""
        response = self._admin.protocol.patiently(
            lambda: self._admin.protocol.ask(DescribeLogDirsRequest(topics=[]), node=broker),
            doing=f"describe the log directories of broker {broker}",
        )
        return [
            LogDirectory(
                broker,
                directory.log_dir,
                directory.error_code == 0,
                directory.total_bytes if directory.total_bytes >= 0 else None,
                directory.usable_bytes if directory.usable_bytes >= 0 else None,
            )
            for directory in response.results
        ]
