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
    """Where a broker keeps records. The sizes are those of its disk, None where the broker does not tell them."""

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
        doing = "describe the cluster"
        found = self._admin.patience.persist(
            lambda limit_s: self._admin.wait(
                self._admin.client.describe_cluster(request_timeout=limit_s), doing=doing
            ),
            doing=doing,
        )
        brokers = sorted(
            (Broker(node.id, node.host, node.port, node.rack) for node in found.nodes), key=lambda one: one.id
        )
        controller = (
            found.controller.id if found.controller is not None and found.controller.id >= 0 else None
        )
        return Cluster(found.cluster_id or "", controller, tuple(brokers))

    def unregister(self, broker: int) -> None:
        """Forget a broker that was stopped for good, so that it gets no replicas of new topics.

        Raises ClientError while the broker is running. A broker that is not registered is no error.
        """
        doing = f"unregister broker {broker}"

        def ask() -> None:
            answer = self._admin.protocol.ask(UnregisterBrokerRequest(broker_id=broker))
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
                raise refusal(answer.error_code, doing=doing, reason=answer.error_message)

        self._admin.protocol.patiently(ask, doing=doing)

    def log_directories(self, broker: int) -> list[LogDirectory]:
        """The directories of a broker, and how full their disks are."""
        answer = self._admin.protocol.patiently(
            lambda: self._admin.protocol.ask(DescribeLogDirsRequest(topics=[]), node=broker),
            doing=f"describe the log directories of broker {broker}",
        )
        return [
            LogDirectory(
                broker,
                one.log_dir,
                one.error_code == 0,
                one.total_bytes if one.total_bytes >= 0 else None,
                one.usable_bytes if one.usable_bytes >= 0 else None,
            )
            for one in answer.results
        ]
