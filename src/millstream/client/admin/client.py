"""``Admin``: one connection for inspecting and changing a cluster, with a part per subject.

with Admin("localhost:9092") as admin:
    admin.topics.create("orders", partitions=3)
    admin.configs.alter("topic", "orders", {"retention.ms": "86400000"})
    admin.offsets.latest("orders")
    admin.groups.lags("billing")
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from millstream.client.admin.cluster import ClusterAdmin
from millstream.client.admin.configs import ConfigsAdmin
from millstream.client.admin.groups import GroupsAdmin
from millstream.client.admin.offsets import OffsetsAdmin
from millstream.client.admin.reassignments import ReassignmentsAdmin
from millstream.client.admin.topics import TopicsAdmin
from millstream.client.admin.transactions import TransactionsAdmin
from millstream.client.connection import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Connection,
    bootstrap_text,
    explain_silence,
)
from millstream.client.errors import (
    NO_ANSWER,
    BrokerUnreachable,
    ClientError,
    kafka_error,
    translate,
)
from millstream.client.library import AdminClient, KafkaException, interruptible, make
from millstream.client.protocol import Protocol
from millstream.client.retries import Retries

T = TypeVar("T")


class _Silence(BrokerUnreachable):
    """A request got no response although a broker accepts connections."""


class Admin:
    """The administration of a cluster.

    Nothing is sent before the first call. That call fails fast if no broker is reachable.

    A call takes at most about ``timeout_s``. Requests that fail because brokers, leaders or the
    controller are changing are repeated (``retries.py``).
    """

    def __init__(
        self,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.connection = Connection(bootstrap_text(bootstrap), timeout_s, options or {})
        self.retries = Retries(timeout_s, self._diagnose)
        self._client: AdminClient | None = None
        self.topics = TopicsAdmin(self)
        self.configs = ConfigsAdmin(self)
        self.cluster = ClusterAdmin(self)
        self.offsets = OffsetsAdmin(self)
        self.protocol = Protocol(
            self.connection,
            retries=self.retries,
            request_timeout_s=self.connection.request_timeout_s,
        )
        self.groups = GroupsAdmin(self)
        self.transactions = TransactionsAdmin(self)
        self.reassignments = ReassignmentsAdmin(self)

    @classmethod
    def over(cls, connection: Connection) -> Admin:
        """Return an Admin with the address and options of another client."""
        return cls(connection.bootstrap, timeout_s=connection.timeout_s, options=connection.options)

    @property
    def client(self) -> AdminClient:
        """The confluent-kafka client, for operations that this class does not offer."""
        if self._client is None:
            self.connection.check_reachable()
            self._client = make(AdminClient, self.connection.config())
        return self._client

    def wait(self, future: Future[T], *, doing: str, subject: str = "") -> T:
        """Return the result of one request, or raise a ClientError that names the operation.

        For use inside an attempt of ``retries``.
        """
        try:
            # librdkafka ends every request at its timeout; the margin covers a loaded machine.
            return future.result(self.connection.request_timeout_s + 30)
        except KafkaException as error:
            raise self.explain(error, doing=doing, subject=subject) from None

    def explain(self, error: Any, *, doing: str, subject: str = "") -> ClientError:
        """Translate an error. If no broker answered, check whether one is reachable.

        librdkafka keeps waiting for the controller that it learned of, even if that is dead. The
        next attempt therefore uses a new client, which looks for the controller again.
        """
        if kafka_error(error).code() not in NO_ANSWER:
            return translate(error, doing=doing, subject=subject)
        self._client = None
        try:
            self.connection.check_reachable()
        except BrokerUnreachable as unreachable:
            return unreachable
        self.retries.reached = True
        return _Silence(translate(error, doing=doing).message)

    def _diagnose(self, error: ClientError, doing: str) -> ClientError:
        return (
            explain_silence(self.connection, self._advertised(), doing)
            if isinstance(error, _Silence)
            else error
        )

    def _advertised(self) -> dict[int, tuple[str, int]]:
        try:
            brokers = interruptible(
                self.client.list_topics, timeout=min(3, self.connection.timeout_s)
            ).brokers
        except KafkaException:
            return {}
        return {node: (broker.host or "", broker.port) for node, broker in brokers.items()}

    def close(self) -> None:
        """Close the connections. Another call would open them again."""
        self._client = None
        self.protocol.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
