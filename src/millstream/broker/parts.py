"""The parts of a broker, built at once when its listeners are bound and its storage is open.

``build`` is the only place that knows the dependencies. Handlers see the parts through the
Protocols of ``broker/services.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from millstream.broker.background import BackgroundTasks
from millstream.broker.configs.storage import housekeeping_settings
from millstream.broker.coordinators import Coordinators
from millstream.broker.events import LogListeners, ReplicaListeners
from millstream.broker.maintenance import Maintenance
from millstream.broker.metadata_changes import MetadataChanges
from millstream.broker.net.listeners import Endpoint
from millstream.broker.net.request_memory import RequestMemory
from millstream.broker.produce.fast_path import ProduceFastPath
from millstream.broker.requests.auto_creation import AutoCreation
from millstream.broker.requests.nodes import Nodes
from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.client import ControllerClient
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.membership.member import ClusterMember
from millstream.cluster.replicas.fetcher import ReplicaFetchers
from millstream.cluster.replicas.isr import IsrManager
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.log_events import ReplicaLogEvents
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.cluster.replicas.throttles import Throttle
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerRegistration
from millstream.core.config import BrokerConfig
from millstream.core.ids import NULL_ID, id_text
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.ports.clock import Clock
from millstream.ports.coordination import Coordination
from millstream.ports.entropy import Entropy
from millstream.ports.files import Files
from millstream.ports.network import Network
from millstream.ports.workers import JobRunner, NewWorker
from millstream.replication.fetch_session import FetchSessionCache
from millstream.replication.read_replica import RACK_AWARE

if TYPE_CHECKING:
    from millstream.cluster.coordinators.groups import GroupDriver
    from millstream.cluster.coordinators.markers import MarkerSender
    from millstream.cluster.coordinators.transactions import TransactionDriver

# An idle child process for conversions ends after this time.
_CONVERTER_IDLE_S = 60.0


@dataclass(frozen=True)
class Ports:
    """The environment of the broker, which tests and the simulation replace."""

    files: Files
    clock: Clock
    network: Network
    entropy: Entropy
    new_worker: NewWorker

    def new_id(self) -> bytes:
        """Return a random id of 16 bytes that is not reserved."""
        while True:
            new_id = self.entropy.uuid().bytes
            # Kafka's tools treat a leading dash as an option.
            if new_id != NULL_ID and not id_text(new_id).startswith("-"):
                return new_id

    def new_member_id(self) -> str:
        return str(self.entropy.uuid())

    def new_session_id(self) -> int:
        return self.entropy.uuid().int % (2**31 - 1) + 1


@dataclass(frozen=True)
class Opened:
    """The resources that a broker opens before its parts can be built."""

    advertised: Sequence[Endpoint]
    image: ClusterImage
    log_configs: LogConfigs
    log_events: ReplicaLogEvents
    logs: LogManager
    coordination: Coordination
    request_memory: RequestMemory
    background: BackgroundTasks


# Without slots: ``cached_property`` needs a place for its values.
@dataclass(frozen=True)
class Parts:
    """The parts of a broker between startup and shutdown."""

    node_id: int
    config: BrokerConfig
    files: Files
    clock: Clock
    new_id: Callable[[], bytes]
    image: ClusterImage
    coordination: Coordination
    nodes: Nodes
    # The cluster.
    member: ClusterMember
    # Acts only while this broker is the controller.
    local_controller: Controller
    # The controller on any broker.
    controller_client: ControllerClient
    metadata_changes: MetadataChanges
    producer_ids: ProducerIds
    coordinators: Coordinators
    auto_creation: AutoCreation
    # Logs and replicas.
    logs: LogManager
    housekeeping: Housekeeping
    maintenance: Maintenance
    replicas: ReplicaManager
    fetchers: ReplicaFetchers
    isr: IsrManager
    leader_throttle: Throttle
    follower_throttle: Throttle
    # Requests.
    request_memory: RequestMemory
    produce_fast_path: ProduceFastPath
    fetch_sessions: FetchSessionCache
    convert_worker: JobRunner
    fetch_max_bytes: int
    max_decompressed_bytes: int
    rack_aware: bool

    # Created on first use, and from then on plain attributes.

    @cached_property
    def groups(self) -> GroupDriver:
        return self.coordinators.groups

    @cached_property
    def transactions(self) -> TransactionDriver:
        return self.coordinators.transactions

    @cached_property
    def markers(self) -> MarkerSender:
        return self.coordinators.markers


def build(config: BrokerConfig, ports: Ports, opened: Opened) -> Parts:
    """Build the parts; nothing runs yet.

    Some parts call each other. The earlier ones get functions that look up the later ones.
    """
    logs, image, clock = opened.logs, opened.image, ports.clock
    replicas: ReplicaManager
    metadata_changes: MetadataChanges

    housekeeping = Housekeeping(logs, housekeeping_settings(config))
    maintenance = Maintenance(config, logs, housekeeping, ports.new_worker)
    nodes = Nodes(image)
    member = ClusterMember(
        _registration(config, opened),
        str(config.get("inter.broker.listener.name") or opened.advertised[0].name),
        image,
        config,
        opened.coordination,
        cluster_id=logs.cluster_id or "",
        network=ports.network,
        clock=clock,
        new_id=ports.new_id,
        on_changes=lambda changes: metadata_changes(changes),
        offline_replicas=lambda: replicas.replica_logs.offline(),
        full_replicas=lambda: replicas.full(),
        all_directories_online=partial(_all_online, logs),
        torn=lambda: logs.may_lack_records,
    )
    controller_client = ControllerClient(member)
    producer_ids = ProducerIds(controller_client.allocate_producer_ids)
    coordinators = Coordinators(
        config,
        image,
        clock,
        member,
        controller_client,
        producer_ids,
        opened.log_configs,
        replicas=lambda: replicas,
        racks=nodes.racks,
        new_member_id=ports.new_member_id,
    )
    leader_throttle, follower_throttle = (
        Throttle(side, config.node_id, image, config, clock) for side in ("leader", "follower")
    )
    fetchers = ReplicaFetchers(
        config.node_id,
        member.peers,
        config,
        clock,
        address=member.address_of,
        broker_epoch=lambda: member.broker_epoch,
        throttle=follower_throttle,
        flush=lambda partition: replicas.flush_if_due(partition),
        log_starts_durable=lambda: replicas.log_starts_durable(),
    )
    replicas = ReplicaManager(
        config.node_id,
        image,
        config,
        logs,
        housekeeping,
        clock,
        log_configs=opened.log_configs,
        fetchers=fetchers,
        events=ReplicaListeners(coordinators, maintenance),
    )
    metadata_changes = MetadataChanges(
        config,
        image,
        logs,
        replicas,
        coordinators,
        (leader_throttle, follower_throttle),
        maintenance,
        opened.background.fail,
    )
    listeners = LogListeners(logs, replicas, maintenance, opened.background.fail)
    opened.log_events.connect(replicas, listeners.directory_failed, member.follower.request_now)
    return Parts(
        node_id=config.node_id,
        config=config,
        files=ports.files,
        clock=clock,
        new_id=ports.new_id,
        image=image,
        coordination=opened.coordination,
        nodes=nodes,
        member=member,
        local_controller=member.controller,
        controller_client=controller_client,
        metadata_changes=metadata_changes,
        producer_ids=producer_ids,
        coordinators=coordinators,
        auto_creation=AutoCreation(controller_client, coordinators.topics),
        logs=logs,
        housekeeping=housekeeping,
        maintenance=maintenance,
        replicas=replicas,
        fetchers=fetchers,
        isr=IsrManager(
            controller_client.alter_partitions,
            led=lambda: replicas.roles.with_followers,
            max_lag_ms=lambda: config.integer("replica.lag.time.max.ms"),
        ),
        leader_throttle=leader_throttle,
        follower_throttle=follower_throttle,
        request_memory=opened.request_memory,
        produce_fast_path=ProduceFastPath(replicas, clock),
        fetch_sessions=FetchSessionCache(
            config.integer("max.incremental.fetch.session.cache.slots"), ports.new_session_id
        ),
        convert_worker=ports.new_worker("converter", idle_exit_s=_CONVERTER_IDLE_S),
        fetch_max_bytes=config.integer("fetch.max.bytes"),
        max_decompressed_bytes=config.integer("record.decompressed.max.bytes"),
        rack_aware=config.get("replica.selector.class") == RACK_AWARE,
    )


def _registration(config: BrokerConfig, opened: Opened) -> BrokerRegistration:
    rack = config.get("broker.rack")
    endpoints = tuple(
        znodes.BrokerEndpoint(endpoint.name, endpoint.host, endpoint.port)
        for endpoint in opened.advertised
    )
    directories = sorted(str(log_dir.directory_id) for log_dir in opened.logs.online_dirs())
    return BrokerRegistration(
        config.node_id, endpoints, str(rack) if rack else None, incarnation=",".join(directories)
    )


def _all_online(logs: LogManager) -> bool:
    """Return whether all directories are online. An offline one may still have a deleted topic."""
    return all(log_dir.online for log_dir in logs.dirs.values())
