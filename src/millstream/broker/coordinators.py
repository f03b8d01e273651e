"""The coordinators of a broker, on ``__consumer_offsets`` and ``__transaction_state``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from millstream.broker.net.request_memory import ids_limit_of
from millstream.cluster.controller.client import ControllerClient
from millstream.cluster.coordinators.internal_topics import OFFSETS, TRANSACTIONS, InternalTopics
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.membership.member import ClusterMember
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.cluster.replicas.partition import Partition
from millstream.control.image import Change, ClusterImage
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig, group_values
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.group_settings import GROUP_BOUNDS
from millstream.core.ids import id_bytes
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.ports.clock import Clock

if TYPE_CHECKING:
    from millstream.cluster.coordinators.groups import GroupDriver
    from millstream.cluster.coordinators.markers import MarkerSender
    from millstream.cluster.coordinators.peers import CoordinatorPeers
    from millstream.cluster.coordinators.transactions import TransactionDriver
    from millstream.groups.settings import GroupSettings
    from millstream.transactions.settings import TransactionSettings

_KNOWS_SHARE = 6


class KeyType(IntEnum):
    """The kinds of coordinators in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class Coordinators:
    """Creates each part, and imports its code, on first use: most brokers start without them.

    Implements ``ReplicaEvents`` and ``MarkerEvents`` for the internal topics.
    """

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        clock: Clock,
        member: ClusterMember,
        controller_client: ControllerClient,
        producer_ids: ProducerIds,
        log_configs: LogConfigs,
        *,
        replicas: Callable[[], ReplicaManager],
        racks: Callable[[], Mapping[int, str]],
        new_member_id: Callable[[], str],
    ) -> None:
        """``replicas`` is called for the first marker. The replicas are created after this object,
        because they report to it which partitions they lead."""
        self.topics = InternalTopics(image, config, controller_client)
        self._config = config
        self._image = image
        self._clock = clock
        self._member = member
        self._producer_ids = producer_ids
        self._log_configs = log_configs
        self._replicas = replicas
        self._racks = racks
        self._new_member_id = new_member_id
        self._groups: GroupDriver | None = None
        self._transactions: TransactionDriver | None = None
        self._markers: MarkerSender | None = None
        self._peers: CoordinatorPeers | None = None
        # Partitions of coordinators that this broker leads before its startup is complete.
        self._early: dict[TopicPartition, Partition] | None = {}

    @property
    def groups(self) -> GroupDriver:
        if self._groups is None:
            self._groups = self._make_groups()
        return self._groups

    def _make_groups(self) -> GroupDriver:
        from millstream.cluster.coordinators.groups import GroupDriver

        return GroupDriver(
            self.topics,
            self._image,
            self._clock,
            self._group_settings(),
            self._new_member_id,
            lambda: self._log_configs.of(OFFSETS).max_message_bytes,
            self._racks,
            self._commit_timeout_s,
        )

    @property
    def transactions(self) -> TransactionDriver:
        if self._transactions is None:
            self._transactions = self._make_transactions()
        return self._transactions

    def _make_transactions(self) -> TransactionDriver:
        from millstream.cluster.coordinators.transactions import TransactionDriver

        return TransactionDriver(
            self.topics,
            self.markers,
            self._producer_ids,
            self._clock,
            self._transaction_settings(),
            self.peers,
            self._commit_timeout_s,
        )

    @property
    def markers(self) -> MarkerSender:
        if self._markers is None:
            from millstream.cluster.coordinators.markers import MarkerSender

            self._markers = MarkerSender(self._replicas(), self._clock, self.peers, events=self)
        return self._markers

    @property
    def peers(self) -> CoordinatorPeers:
        if self._peers is None:
            from millstream.cluster.coordinators.peers import CoordinatorPeers

            member = self._member
            self._peers = CoordinatorPeers(
                member.node_id, self._image, member.peers, member.address_of
            )
        return self._peers

    # ---- events ----

    def led(self, partition: Partition) -> None:
        if partition.tp.topic not in (OFFSETS, TRANSACTIONS):
            return
        if self._early is not None:
            self._early[partition.tp] = partition
        else:
            self._lead(partition)

    def lost(self, tp: TopicPartition) -> None:
        if self._early is not None:
            self._early.pop(tp, None)
        elif tp.topic == OFFSETS:
            self.groups.resign(tp.partition)
        elif tp.topic == TRANSACTIONS:
            self.transactions.resign(tp.partition)

    def begin(self) -> None:
        """Start the coordinators: all topics are loaded, and their work may concern any of them."""
        early, self._early = self._early or {}, None
        for partition in early.values():
            if partition.leader == self._member.node_id and partition.log is not None:
                self._lead(partition)

    def _lead(self, partition: Partition) -> None:
        if partition.tp.topic == OFFSETS:
            self.groups.lead(partition)
        else:
            self.transactions.lead(partition)

    def marker_written(
        self, tp: TopicPartition, offset: int, producer_id: int, commit: bool
    ) -> None:
        if tp.topic == OFFSETS:
            self.groups.marker_written(tp.partition, offset, producer_id, commit)

    def topics_changed(self, changes: Iterable[Change]) -> None:
        if self._groups is not None:
            self._groups.topics_changed(changes)

    def reconfigure(self) -> None:
        """Apply a change of settings or features."""
        if self._transactions is not None:
            self._transactions.reconfigure(self._transaction_settings())
        if self._groups is not None:
            self._groups.reconfigure(self._group_settings())

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
        if self._groups is not None:
            self._groups.close()
        if self._peers is not None:
            self._peers.close()

    # ---- lookup ----

    async def find(self, key_type: int, key: str, version: int) -> int:
        """Return the broker that coordinates a key; raise ApiError if there is none now.

        ``version`` is that of FindCoordinator.
        """
        if key_type == KeyType.TRANSACTION:
            partition = TopicPartition(TRANSACTIONS, await self.transactions.find(key))
        elif key_type == KeyType.GROUP:
            partition = await self.groups.offsets_partition(key)
        elif key_type == KeyType.SHARE and version >= _KNOWS_SHARE and _is_share_key(key):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        node = self.peers.leader(partition)
        if node == NO_LEADER:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return node

    def _commit_timeout_s(self) -> float:
        return self._config.integer("offsets.commit.timeout.ms") / 1000

    def _group_settings(self) -> GroupSettings:
        """Collect the settings of groups.

        Each field of GroupSettings is a setting of the same name, with dots. ``overrides`` has the
        settings of single groups.
        """
        from millstream.groups.settings import GroupOverrides, GroupSettings

        values: dict[str, Any] = {}
        for field in dataclasses.fields(GroupSettings):
            name = field.name.replace("_", ".")
            if name in BROKER_SETTINGS:
                values[field.name] = self._config.get(name)
        for group_id, texts in self._image.group_configs.items():
            own = group_values(self._config, texts)
            values.setdefault("overrides", {})[group_id] = GroupOverrides(
                *(own[name] for name in GROUP_BOUNDS)
            )
        return GroupSettings(**values)

    def _transaction_settings(self) -> TransactionSettings:
        from millstream.transactions.settings import TransactionSettings

        config = self._config
        return TransactionSettings(
            transaction_max_timeout_ms=config.integer("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=config.integer("transactional.id.expiration.ms"),
            transaction_abort_timed_out_transaction_cleanup_interval_ms=config.integer(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms"
            ),
            transaction_remove_expired_transaction_cleanup_interval_ms=config.integer(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            transactional_ids_max_bytes=ids_limit_of(
                config.get("transactional.ids.memory.max.bytes")
            ),
            transaction_two_phase_commit_enable=config.flag("transaction.two.phase.commit.enable"),
            transaction_version=self._image.feature_levels.get("transaction.version", 0),
        )


def _is_share_key(key: str) -> bool:
    """Return whether a key is ``group:topic id:partition``. The group may have colons too."""
    group, _, rest = key.rpartition(":")[0].rpartition(":")
    try:
        id_bytes(rest)
        int(key.rpartition(":")[2])
    except ValueError:
        return False
    return bool(group.strip())
