"""The coordinators of a broker, put together: groups on ``__consumer_offsets``, transactions on ``__transaction_state``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from millstream.broker.net.request_memory import ids_limit_of
from millstream.cluster.coordinators.internal_topics import OFFSETS, TRANSACTIONS, InternalTopics
from millstream.control.image import Change
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig, group_values
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.group_settings import GROUP_BOUNDS
from millstream.core.ids import id_bytes
from millstream.core.types import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from millstream.broker.app import Broker
    from millstream.cluster.coordinators.groups import GroupDriver
    from millstream.cluster.coordinators.markers import MarkerSender
    from millstream.cluster.coordinators.peers import CoordinatorPeers
    from millstream.cluster.coordinators.transactions import TransactionDriver
    from millstream.groups.settings import GroupSettings
    from millstream.transactions.settings import TransactionSettings


# What FindCoordinator looks for.
GROUP, TRANSACTION, SHARE = 0, 1, 2
_KNOWS_SHARE = 6


class Coordinators:
    """Each part is made, and its code imported, when it is first needed: most brokers start without one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topics = InternalTopics(broker.image, broker.config, broker.control)
        broker.replicas.on_led = {
            TRANSACTIONS: lambda partition: self.transactions.lead(partition),
            OFFSETS: lambda partition: self.groups.lead(partition),
        }
        broker.replicas.on_lost = {
            TRANSACTIONS: lambda tp: self.transactions.resign(tp.partition),
            OFFSETS: lambda tp: self.groups.resign(tp.partition),
        }

    @cached_property
    def groups(self) -> GroupDriver:
        from millstream.cluster.coordinators.groups import GroupDriver

        broker = self._broker
        return GroupDriver(
            self.topics,
            broker.image,
            broker.clock,
            self._group_settings(),
            lambda: str(broker.entropy.uuid()),
            lambda: broker.replicas.log_config(OFFSETS).max_message_bytes,
            broker.racks,
            self._commit_timeout_s,
        )

    @cached_property
    def markers(self) -> MarkerSender:
        from millstream.cluster.coordinators.markers import MarkerSender

        sender = MarkerSender(self._broker.replicas, self._broker.clock, self.peers)
        sender.on_marker = {OFFSETS: lambda *what: self.groups.marker_written(*what)}
        return sender

    @cached_property
    def peers(self) -> CoordinatorPeers:
        from millstream.cluster.coordinators.peers import CoordinatorPeers

        broker = self._broker
        return CoordinatorPeers(broker.node_id, broker.image, broker.member.peers, broker.peer_address)

    @cached_property
    def transactions(self) -> TransactionDriver:
        from millstream.cluster.coordinators.transactions import TransactionDriver

        broker = self._broker
        return TransactionDriver(
            self.topics,
            self.markers,
            broker.producer_ids,
            broker.clock,
            self._transaction_settings(),
            self.peers,
            self._commit_timeout_s,
        )

    async def find(self, key_type: int, key: str, version: int) -> int:
        """The broker that coordinates a key; raises ApiError where there is none now. ``version``: of FindCoordinator."""
        if key_type == TRANSACTION:
            partition = TopicPartition(TRANSACTIONS, await self.transactions.find(key))
        elif key_type == GROUP:
            partition = await self.groups.offsets_partition(key)
        elif key_type == SHARE and version >= _KNOWS_SHARE and _is_share_key(key):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        node = self.peers.leader(partition)
        if node == NO_LEADER:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return node

    def _commit_timeout_s(self) -> float:
        return self._broker.config.integer("offsets.commit.timeout.ms") / 1000

    def topics_changed(self, changes: Iterable[Change]) -> None:
        if "groups" in self.__dict__:
            self.groups.topics_changed(changes)

    def groups_changed(self) -> None:
        """After a change of settings of single groups."""
        if "groups" in self.__dict__:
            self.groups.reconfigure(self._group_settings())

    def reconfigure(self) -> None:
        """After a change of settings or features."""
        if "transactions" in self.__dict__:
            self.transactions.reconfigure(self._transaction_settings())
        self.groups_changed()

    def close(self) -> None:
        if "transactions" in self.__dict__:
            self.transactions.close()
        if "groups" in self.__dict__:
            self.groups.close()
        if "peers" in self.__dict__:
            self.peers.close()

    def _group_settings(self) -> GroupSettings:
        """Every field of GroupSettings is a setting of the same name, with dots; but for those of single groups."""
        from millstream.groups.settings import GroupSettings, OwnSettings

        values: dict[str, Any] = {}
        for field in dataclasses.fields(GroupSettings):
            name = field.name.replace("_", ".")
            if name in BROKER_SETTINGS:
                values[field.name] = self._broker.config.get(name)
        for group_id, texts in self._broker.image.group_configs.items():
            own = group_values(self._broker.config, texts)
            values.setdefault("own", {})[group_id] = OwnSettings(*(own[name] for name in GROUP_BOUNDS))
        return GroupSettings(**values)

    def _transaction_settings(self) -> TransactionSettings:
        from millstream.transactions.settings import TransactionSettings

        config: BrokerConfig = self._broker.config
        return TransactionSettings(
            transaction_max_timeout_ms=config.integer("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=config.integer("transactional.id.expiration.ms"),
            transaction_abort_timed_out_transaction_cleanup_interval_ms=config.integer(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms"
            ),
            transaction_remove_expired_transaction_cleanup_interval_ms=config.integer(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            transactional_ids_max_bytes=ids_limit_of(config.get("transactional.ids.memory.max.bytes")),
            transaction_two_phase_commit_enable=config.flag("transaction.two.phase.commit.enable"),
            transaction_version=self._broker.image.feature_levels.get("transaction.version", 0),
        )


def _is_share_key(key: str) -> bool:
    """``group:topic id:partition``; colons before the last two belong to the group."""
    group, _, rest = key.rpartition(":")[0].rpartition(":")
    try:
        id_bytes(rest)
        int(key.rpartition(":")[2])
    except ValueError:
        return False
    return bool(group.strip())
