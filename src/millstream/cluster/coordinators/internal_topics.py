"""The topics in which coordinators keep their state: made when first needed, with the settings that Kafka gives them."""

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


# Of an internal topic, where nobody has said otherwise and there are brokers for so many.
_REPLICAS = 3


def desired_replication_factor(config: BrokerConfig, name: str, brokers: int) -> int:
    """How many replicas an internal topic should have: as the setting says where it is given, else three, or as many as there are
    brokers. A cluster that grows raises it."""
    given = config.static.get(_SPECS[name].replication_factor)
    return given if isinstance(given, int) else min(_REPLICAS, max(brokers, 1))


def desired_min_isr(config: BrokerConfig, factor: int) -> int:
    given = config.static.get("transaction.state.log.min.isr")
    return given if isinstance(given, int) else max(factor - 1, 1)


class TopicMaker(Protocol):
    """The controller, wherever it is."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, Outcome]: ...


class InternalTopics:
    """Knows how many partitions an internal topic has, and makes it when it does not exist."""

    def __init__(self, image: ClusterImage, config: BrokerConfig, controller: TopicMaker) -> None:
        self._image = image
        self._config = config
        self._controller = controller
        self._lock = asyncio.Lock()

    @property
    def names(self) -> Collection[str]:
        """The internal topics that brokers create."""
        return _SPECS.keys()

    def partitions(self, name: str) -> int:
        """0 while it does not exist."""
        topic = self._image.topics.get(name)
        return topic.partition_count if topic is not None else 0

    async def ensure(self, name: str) -> int:
        """The partition count; raises ApiError where the topic cannot be made."""
        async with self._lock:
            count = self.partitions(name)
            return count or await self._create(name)

    def new_topic(self, name: str) -> NewTopic:
        """The shape and settings that an internal topic is created with."""
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
        if not count:  # made, but this broker has not heard of it yet
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return count
