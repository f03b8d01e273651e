"""The services that handlers may use, by family of APIs.

A handler ``handle(services, context, request)`` names one of these Protocols, so that its signature
shows everything it can touch. At run time ``services`` is the broker's ``Parts``; mypy checks below
that it satisfies each Protocol. Attributes are direct: each hop costs on hot paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.broker.coordinators import Coordinators
    from millstream.broker.maintenance import Maintenance
    from millstream.broker.net.request_memory import RequestMemory
    from millstream.broker.parts import Parts
    from millstream.broker.produce.fast_path import ProduceFastPath
    from millstream.broker.requests.auto_creation import AutoCreation
    from millstream.broker.requests.nodes import Nodes
    from millstream.cluster.controller.changes import Controller
    from millstream.cluster.coordinators.groups import GroupDriver
    from millstream.cluster.coordinators.markers import MarkerSender
    from millstream.cluster.coordinators.producer_ids import ProducerIds
    from millstream.cluster.coordinators.transactions import TransactionDriver
    from millstream.cluster.membership.member import ClusterMember
    from millstream.cluster.replicas.isr import IsrManager
    from millstream.cluster.replicas.manager import ReplicaManager
    from millstream.cluster.replicas.throttles import Throttle
    from millstream.control.image import ClusterImage
    from millstream.core.config import BrokerConfig
    from millstream.log.management.manager import LogManager
    from millstream.ports.clock import Clock
    from millstream.ports.files import Files
    from millstream.ports.workers import JobRunner
    from millstream.replication.fetch_session import FetchSessionCache


class NoServices(Protocol):
    """For responses that depend only on the request."""


class GroupServices(Protocol):
    """Members of classic groups, and lists of groups."""

    @property
    def groups(self) -> GroupDriver: ...


class ConsumerGroupServices(GroupServices, Protocol):
    """Members of consumer groups (KIP-848), which a feature level in the image enables."""

    @property
    def image(self) -> ClusterImage: ...


class OffsetServices(GroupServices, Protocol):
    """Committed offsets of groups."""


class TransactionServices(Protocol):
    """Producer ids, transactions and their markers."""

    @property
    def image(self) -> ClusterImage: ...
    @property
    def producer_ids(self) -> ProducerIds: ...
    @property
    def groups(self) -> GroupDriver: ...
    @property
    def transactions(self) -> TransactionDriver: ...
    @property
    def markers(self) -> MarkerSender: ...


class TransactionalOffsetServices(OffsetServices, Protocol):
    """TxnOffsetCommit: offsets of a group that join a transaction."""

    @property
    def clock(self) -> Clock: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def transactions(self) -> TransactionDriver: ...


class CoordinatorServices(Protocol):
    """FindCoordinator."""

    @property
    def nodes(self) -> Nodes: ...
    @property
    def coordinators(self) -> Coordinators: ...


class ProduceServices(Protocol):
    """Produce."""

    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def nodes(self) -> Nodes: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def transactions(self) -> TransactionDriver: ...
    @property
    def produce_fast_path(self) -> ProduceFastPath: ...
    @property
    def request_memory(self) -> RequestMemory: ...
    @property
    def convert_worker(self) -> JobRunner: ...
    @property
    def max_decompressed_bytes(self) -> int: ...


class FetchServices(Protocol):
    """Fetch, of consumers and of followers."""

    @property
    def node_id(self) -> int: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def nodes(self) -> Nodes: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def isr(self) -> IsrManager: ...
    @property
    def leader_throttle(self) -> Throttle: ...
    @property
    def fetch_sessions(self) -> FetchSessionCache: ...
    @property
    def convert_worker(self) -> JobRunner: ...
    @property
    def fetch_max_bytes(self) -> int: ...
    @property
    def max_decompressed_bytes(self) -> int: ...
    @property
    def rack_aware(self) -> bool: ...


class LogServices(Protocol):
    """Offsets, deletions and producers of single partitions."""

    @property
    def clock(self) -> Clock: ...
    @property
    def replicas(self) -> ReplicaManager: ...


class LogDirectoryServices(Protocol):
    """The data directories and the logs in them."""

    @property
    def files(self) -> Files: ...
    @property
    def logs(self) -> LogManager: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def maintenance(self) -> Maintenance: ...


class MetadataServices(Protocol):
    """Metadata of the cluster for clients."""

    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> ClusterImage: ...
    @property
    def nodes(self) -> Nodes: ...
    @property
    def member(self) -> ClusterMember: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def auto_creation(self) -> AutoCreation: ...


class MemberServices(Protocol):
    """Requests to the controller as a member of the cluster, and the way to it."""

    @property
    def member(self) -> ClusterMember: ...
    @property
    def auto_creation(self) -> AutoCreation: ...


class EnvelopeServices(MemberServices, Protocol):
    """Requests that another broker forwards, which may be large."""

    @property
    def request_memory(self) -> RequestMemory: ...


class ControllerServices(MemberServices, Protocol):
    """Changes of the cluster. ``local_controller`` acts while this broker is the controller."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> ClusterImage: ...
    @property
    def local_controller(self) -> Controller: ...
    @property
    def coordinators(self) -> Coordinators: ...


class ConfigServices(MemberServices, Protocol):
    """Settings of topics, brokers, groups, loggers and client metrics."""

    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> ClusterImage: ...
    @property
    def local_controller(self) -> Controller: ...


class TelemetryServices(Protocol):
    """Client telemetry."""

    @property
    def new_id(self) -> Callable[[], bytes]: ...


class DispatchServices(MemberServices, Protocol):
    """The dispatcher itself."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def request_memory(self) -> RequestMemory: ...
    @property
    def produce_fast_path(self) -> ProduceFastPath: ...


if TYPE_CHECKING:

    def _satisfies(
        parts: Parts,
    ) -> tuple[
        NoServices,
        GroupServices,
        ConsumerGroupServices,
        OffsetServices,
        TransactionServices,
        TransactionalOffsetServices,
        CoordinatorServices,
        ProduceServices,
        FetchServices,
        LogServices,
        LogDirectoryServices,
        MetadataServices,
        MemberServices,
        EnvelopeServices,
        ControllerServices,
        ConfigServices,
        TelemetryServices,
        DispatchServices,
    ]:
        return (parts,) * 18
