"""The internal topics of coordinators: created when first needed, with Kafka's settings."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from millstream.cluster.controller.changes import Outcome
from millstream.control.image import ClusterImage
from millstream.control.topics import NewTopic
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"


class _Spec(NamedTuple):
    """The broker settings that shape an internal topic, and its fixed topic settings."""

    partitions: str
    replication_factor: str
    segment_bytes: str
    fixed: tuple[tuple[str, str], ...]


_SPECS = {
    OFFSETS: _Spec(
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
        (("cleanup.policy", "compact"), ("compression.type", "producer")),
    ),
    TRANSACTIONS: _Spec(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
        (
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("unclean.leader.election.enable", "false"),
        ),
    ),
}


# Default replication factor of internal topics, if there are enough brokers.
_REPLICAS = 3


def desired_replication_factor(config: BrokerConfig, name: str, brokers: int) -> int:
    """Return the replication factor for an internal topic.

    The default is three, or the number of brokers if there are fewer; a growing cluster raises it.
    """
    configured = config.static.get(_SPECS[name].replication_factor)
    return configured if isinstance(configured, int) else min(_REPLICAS, max(brokers, 1))


def desired_min_isr(config: BrokerConfig, factor: int) -> int:
    configured = config.static.get("transaction.state.log.min.isr")
    return configured if isinstance(configured, int) else max(factor - 1, 1)


class TopicCreator(Protocol):
    """The controller, in this process or another."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, Outcome]: ...


class InternalTopics:
    """Knows the partition count of internal topics, and creates missing ones."""

    def __init__(self, image: ClusterImage, config: BrokerConfig, controller: TopicCreator) -> None:
        self._image = image
        self._config = config
        self._controller = controller
        self._lock = asyncio.Lock()

    @property
    def names(self) -> Collection[str]:
        """The internal topics that brokers create."""
        return _SPECS.keys()

    def partitions(self, name: str) -> int:
        """Return the partition count; 0 if the topic does not exist."""
        topic = self._image.topics.get(name)
        return topic.partition_count if topic is not None else 0

    async def ensure(self, name: str) -> int:
        """Return the partition count; create the topic if needed, or raise ApiError."""
        async with self._lock:
            count = self.partitions(name)
            return count or await self._create(name)

    def new_topic(self, name: str) -> NewTopic:
        """Return the shape and settings with which an internal topic is created."""
        spec, config = _SPECS[name], self._config
        settings = (*spec.fixed, ("segment.bytes", str(config.integer(spec.segment_bytes))))
        factor = desired_replication_factor(config, name, len(self._image.registered_brokers()))
        if name == TRANSACTIONS:
            settings += (("min.insync.replicas", str(desired_min_isr(config, factor))),)
        return NewTopic(name, config.integer(spec.partitions), factor, configs=settings)

    async def _create(self, name: str) -> int:
        try:
            outcome = (await self._controller.create_topics([self.new_topic(name)]))[name]
        except ApiError as error:  # no controller at the moment
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from None
        if outcome.code and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, outcome.message)
        count = self.partitions(name)
        if not count:  # created, but not in the image of this broker yet
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return count
