"""The coordinators of a broker, put together: groups on ``__consumer_offsets``, transactions on ``__transaction_state``."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

from millstream.cluster.group_driver import GroupDriver
from millstream.cluster.internal_topics import OFFSETS, TRANSACTIONS, InternalTopics
from millstream.cluster.marker_sender import MarkerSender
from millstream.cluster.transaction_driver import TransactionDriver
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.settings import GroupSettings
from millstream.transactions.settings import TransactionSettings

if TYPE_CHECKING:
    from millstream.broker.app import Broker


# What FindCoordinator looks for.
GROUP, TRANSACTION, SHARE = 0, 1, 2


class Coordinators:
    """Made once per broker; handlers use its parts."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topics = InternalTopics(broker.image, broker.config, broker.controller)
        self.markers = MarkerSender(broker.replicas, broker.clock)
        self.transactions = TransactionDriver(
            self.topics, self.markers, broker.producer_ids, broker.clock, self._transaction_settings()
        )
        self.groups = GroupDriver(
            self.topics,
            broker.image,
            broker.clock,
            self._group_settings(),
            lambda: str(uuid.uuid4()),
            lambda: broker.replicas.log_config(OFFSETS).max_message_bytes,
        )
        self.markers.on_marker = {OFFSETS: self.groups.marker_written}
        broker.replicas.on_led = {TRANSACTIONS: self.transactions.lead, OFFSETS: self.groups.lead}

    async def find(self, key_type: int, key: str) -> None:
        """Returns when the coordinator of a key can be asked; raises ApiError where there is none."""
        if key_type == TRANSACTION:
            await self.transactions.find(key)
        elif key_type == GROUP:
            await self.groups.offsets_partition(key)
        elif key_type == SHARE and key.count(":") >= 2:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST)

    def reconfigure(self) -> None:
        self.transactions.reconfigure(self._transaction_settings())
        self.groups.reconfigure(self._group_settings())

    def close(self) -> None:
        self.transactions.close()
        self.groups.close()

    def _group_settings(self) -> GroupSettings:
        """Every field of GroupSettings is a setting of the same name, with dots."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(GroupSettings):
            name = field.name.replace("_", ".")
            if name in BROKER_SETTINGS:
                values[field.name] = self._broker.config.get(name)
        return GroupSettings(**values)

    def _transaction_settings(self) -> TransactionSettings:
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
            transaction_two_phase_commit_enable=config.flag("transaction.two.phase.commit.enable"),
            transaction_version=self._broker.image.feature_levels.get("transaction.version", 0),
        )


__all__ = ["OFFSETS", "TRANSACTIONS", "Coordinators"]
