"""Kafka's protocol over one blocking socket per broker, for requests that confluent-kafka lacks.

Groups with all their states (librdkafka knows five of the seven), OffsetDelete, and the
administration of transactions use it. Requests are the declarations in ``wire/messages``, in the
newest version that both sides know. Only PLAINTEXT listeners are supported; librdkafka has TLS and
SASL.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from millstream.client.connection import (
    CONNECT_TIMEOUT_S,
    Connection,
    format_address,
    parse_bootstrap,
)
from millstream.client.errors import BrokerUnreachable, ClientError, refusal
from millstream.client.retries import Retries
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.apis import BY_NAME, api_of
from millstream.wire.link import Link, NoCommonVersion
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.schema import DecodeError, Struct

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1
CLIENT_ID = "millstream"
MAX_RESPONSE_BYTES = 100 << 20

_BOOTSTRAP = -1


class Address(NamedTuple):
    node: int
    host: str
    port: int

    def __str__(self) -> str:
        return format_address(self.host, self.port)


class Protocol:
    """Requests to single brokers of a cluster.

    ``request_timeout_s`` is the time to wait for one response.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        retries: Retries | None = None,
        request_timeout_s: float | None = None,
    ) -> None:
        self._connection = connection
        self._retries = retries or Retries(connection.timeout_s)
        self._request_timeout_s = request_timeout_s or connection.timeout_s
        self._failed: Address | None = None  # the last that did not respond
        self._links: dict[int, _Link] = {}
        self._brokers: dict[int, Address] = {}

    def ask(self, request: Struct, *, node: int = _BOOTSTRAP, newest: int | None = None) -> Any:
        """Return the response of a broker; of any, unless ``node`` names one.

        The version is the newest that both sides know, and at most ``newest``.
        """
        return self.begin(request, node=node, newest=newest).answer()

    def begin(
        self, request: Struct, *, node: int = _BOOTSTRAP, newest: int | None = None
    ) -> Pending:
        """Send a request and return without its response. One at a time for each broker."""
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self._open(node)
        pending = Pending(self, node, link, request)
        with pending.failures_explained():
            link.send(request, newest, pending)
        return pending

    def forget(self, node: int) -> None:
        """Close the connection to a broker. The next request looks up its address again."""
        if link := self._links.pop(node, None):
            link.close()
            self._failed = link.address
        self._brokers.pop(node, None)

    def place(self, address: Address) -> None:
        """Store the address of a broker that another client has found."""
        self._brokers.setdefault(address.node, address)

    def metadata(self, topics: Iterable[str] | None) -> Any:
        """Return the metadata of these topics, or of all. The request creates no topics."""
        requested = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        response = self.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=False))
        self._learn(response)
        return response

    def topic_ids(self) -> dict[str, bytes]:
        """Return the id of every topic, by name (KIP-516); all zeros if a broker has none."""
        return self.patiently(
            lambda: {topic.name: bytes(topic.topic_id) for topic in self.metadata(None).topics},
            doing="list the ids of topics",
        )

    def supports(self, name: str) -> bool:
        """Return whether the cluster and this client both know an API."""
        if name not in BY_NAME:
            return False
        if _BOOTSTRAP not in self._links:
            self._links[_BOOTSTRAP] = self._open(_BOOTSTRAP)
        return BY_NAME[name].key in self._links[_BOOTSTRAP].versions

    def brokers(self) -> list[Address]:
        """Return the live brokers, by node id."""
        self._learn(self.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False)))
        return [self._brokers[node] for node in sorted(self._brokers)]

    def address(self, node: int) -> Address:
        if node not in self._brokers:
            self.brokers()
        if node not in self._brokers:
            raise ClientError(
                f"broker {node} does not exist or is down", hint="see which brokers are up"
            )
        return self._brokers[node]

    def leaders(self, topics: Iterable[str]) -> dict[TopicPartition, int | None]:
        """Return the leader of each partition of these topics; nothing for missing topics."""
        names = sorted(set(topics))
        if not names:
            return {}
        requested = [MetadataRequestTopic(name=name) for name in names]
        response = self.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=False))
        self._learn(response)
        return {
            TopicPartition(topic.name, partition.partition_index): partition.leader_id
            if partition.leader_id >= 0
            else None
            for topic in response.topics
            for partition in topic.partitions
        }

    def coordinator(self, key: str, kind: int) -> Address:
        """Return the broker that coordinates a group or a transactional id."""
        response = self.ask(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]))
        result = response.coordinators[0] if response.coordinators else response
        if result.error_code:
            subject = "group" if kind == GROUP else "transactional id"
            doing = f"find the coordinator of {subject} {key!r}"
            raise refusal(result.error_code, doing=doing, reason=result.error_message)
        self._brokers[result.node_id] = Address(result.node_id, result.host, result.port)
        return self._brokers[result.node_id]

    def patiently(
        self,
        attempt: Callable[[], T],
        *,
        doing: str = "",
        done: Callable[[ClientError], T] | None = None,
    ) -> T:
        """Repeat what fails because brokers, leaders or coordinators are down, until the timeout.

        Each attempt has to find out again which broker to send to.
        """
        return self._retries.run(lambda limit_s: attempt(), doing=doing, done=done)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _learn(self, metadata: Any) -> None:
        self._brokers = {
            broker.node_id: Address(broker.node_id, broker.host, broker.port)
            for broker in metadata.brokers
        }

    def _open(self, node: int) -> _Link:
        self._check_plain_text()
        if node != _BOOTSTRAP:
            return self._open_at(self.address(node))
        *others, last = self._candidates()
        for address in others:
            try:
                return self._open_at(address)
            except BrokerUnreachable:
                pass
        return self._open_at(last)

    def _candidates(self) -> list[Address]:
        """Return all known addresses: the given ones, then those from the cluster.

        The address that failed last comes last.
        """
        if not self._brokers:
            self._connection.check_reachable()
        given = [Address(_BOOTSTRAP, *pair) for pair in parse_bootstrap(self._connection.bootstrap)]
        learned = [broker._replace(node=_BOOTSTRAP) for broker in self._brokers.values()]
        failed = self._failed and self._failed._replace(node=_BOOTSTRAP)
        return sorted(dict.fromkeys([*given, *learned]), key=lambda address: address == failed)

    def _open_at(self, address: Address) -> _Link:
        link = _Link.to(address, self._request_timeout_s)
        self._retries.reached = True
        return link

    def _check_plain_text(self) -> None:
        security = str(self._connection.options.get("security.protocol", "plaintext"))
        if security.lower() != "plaintext":
            raise ClientError(
                f"this request needs a PLAINTEXT listener, not {security}: "
                "it does not support TLS and SASL yet",
                hint="give the address of a PLAINTEXT listener",
            )


class Pending:
    """A request in flight. ``fileno`` is for ``select``."""

    def __init__(self, protocol: Protocol, node: int, link: _Link, request: Struct) -> None:
        self.node = node
        self._protocol = protocol
        self._link = link
        self._request = request

    def fileno(self) -> int:
        return self._link.fileno()

    def answer(self, scratch: Scratch | None = None) -> Any:
        """Wait for the response, until the timeout of the connection.

        Data in ``scratch`` is valid until its next use.
        """
        with self.failures_explained():
            return self._link.receive(self, scratch)

    @contextmanager
    def failures_explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DecodeError) as error:
            self._protocol.forget(self.node)
            raise BrokerUnreachable(
                f"{self._link.address} did not answer {api_of(self._request).name}: {_reason(error)}",
                hint="see the log of that broker",
            ) from None


class Scratch:
    """Memory that is reused for responses: new pages for each large one cost more than receiving
    it.
    """

    def __init__(self) -> None:
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def room(self, count: int) -> memoryview:
        if len(self._data) < count:
            self._data = bytearray(count)
        return memoryview(self._data)[:count]


class _Link:
    """One connection, and the versions that its broker offers."""

    def __init__(self, address: Address, peer: socket.socket) -> None:
        self.address = address
        self._peer = peer
        self._link: Link[Pending | None] = Link(
            CLIENT_ID, max_response_bytes=MAX_RESPONSE_BYTES, in_order=True
        )

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        return self._link.versions

    @classmethod
    def to(cls, address: Address, timeout_s: float) -> _Link:
        try:
            peer = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            broker = "a broker" if address.node == _BOOTSTRAP else f"broker {address.node}"
            raise BrokerUnreachable(
                f"cannot reach {broker} at {address} ({_reason(error)})",
                hint="check that it runs, and that its advertised.listeners are reachable",
            ) from None
        peer.settimeout(timeout_s)
        link = cls(address, peer)
        try:
            link._negotiate()
        except (OSError, DecodeError) as error:
            link.close()
            raise BrokerUnreachable(
                f"{address} accepts connections but does not answer as a Kafka broker ({_reason(error)})",
                hint="check that the port is a PLAINTEXT listener of a broker",
            ) from None
        return link

    def fileno(self) -> int:
        return self._peer.fileno()

    def send(self, request: Struct, newest: int | None, pending: Pending) -> None:
        try:
            version = self._link.version(api_of(request), newest=newest)
        except NoCommonVersion as error:
            raise ClientError(
                f"the broker at {self.address} has no {error.api.name} that this client knows",
                hint="use a newer broker or client",
                code=ErrorCode.UNSUPPORTED_VERSION,
            ) from None
        self._peer.sendall(self._link.request(request, version, pending))

    def receive(self, pending: Pending | None, scratch: Scratch | None = None) -> Any:
        """Return the response to a request. No earlier request may be pending."""
        link = self._link
        link.allocate = bytearray if scratch is None else scratch.room
        frame = None
        while frame is None:
            frame = link.received(self._peer.recv_into(link.buffer))
        waiter, response = link.response(frame)
        if waiter is not pending:
            raise DecodeError("a response to an earlier request")
        return response

    def close(self) -> None:
        self._peer.close()

    def _negotiate(self) -> None:
        """Request the versions with version 0, which every broker reads."""
        self._peer.sendall(self._link.request(ApiVersionsRequest(), 0, None))
        self._link.learn_versions(self.receive(None))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)).lower()
