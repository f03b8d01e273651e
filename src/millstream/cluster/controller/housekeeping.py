"""The controller's periodic work: unfinished deletions, internal topics, leader rebalancing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState
from millstream.cluster.coordinators.internal_topics import (
    OFFSETS,
    TRANSACTIONS,
    desired_min_isr,
    desired_replication_factor,
)
from millstream.control.growth import expanded_replicas
from millstream.control.image import ClusterImage
from millstream.core.config import BrokerConfig, stored_topic_overrides
from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition

log = logging.getLogger("millstream.member")

_INTERVAL_S = 1.0
UNCLEAN = "unclean.leader.election.enable"


def allows_unclean_election(config: BrokerConfig, image: ClusterImage, topic: str) -> bool:
    """Return whether a topic allows unclean elections.

    This is called for many topics when a broker fails, so it parses no other setting of theirs.
    """
    override = image.topic_configs.get(topic, {}).get(UNCLEAN)
    if override is None:
        return config.flag(UNCLEAN)
    return bool(stored_topic_overrides({UNCLEAN: override}).values.get(UNCLEAN))


class ControllerHousekeeping:
    """Runs on every broker, and does nothing while another broker is the controller."""

    def __init__(
        self,
        state: ControllerState,
        config: BrokerConfig,
        controller: Controller,
        partitions: PartitionControl,
    ) -> None:
        self._state = state
        self._config = config
        self._controller = controller
        self._partitions = partitions

    async def run(self) -> None:
        rebalance_at = self._next_rebalance()
        unclean: object = None
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if not self._state.active:
                continue
            try:
                if unclean != (unclean := self._unclean_settings()):
                    await self._partitions.elections.elect_offline()
                await self._controller.finish_deletions()
                await self.drop_deletion_records()
                await self.grow_internal_topics()
                if asyncio.get_running_loop().time() >= rebalance_at:
                    rebalance_at = self._next_rebalance()
                    if self._config.flag("auto.leader.rebalance.enable"):
                        await self._partitions.elections.rebalance_leaders(
                            self._config.integer("leader.imbalance.per.broker.percentage")
                        )
            except ApiError as error:
                log.info("the controller's housekeeping is postponed: %s", error)

    def _unclean_settings(self) -> object:
        """Return the settings that allow unclean elections, of all topics and of each."""
        configs = self._state.image.topic_configs.items()
        return (
            self._config.flag(UNCLEAN),
            [name for name, config in configs if config.get(UNCLEAN) == "true"],
        )

    async def grow_internal_topics(self) -> None:
        """Add replicas to internal topics that were created when the cluster was smaller."""
        image = self._state.image
        brokers = sorted(image.brokers.keys() - image.stopping)
        for name in (OFFSETS, TRANSACTIONS):
            topic = image.topics.get(name)
            if topic is None or topic.topic_id in image.kept_small:
                continue
            factor = desired_replication_factor(self._config, name, len(brokers))
            targets = expanded_replicas(topic, factor, brokers)
            if targets:
                log.info("%s gets %d replicas of each partition", name, factor)
                await self._partitions.reassignments.reassign(
                    {TopicPartition(name, index): nodes for index, nodes in targets.items()},
                    by_operator=False,
                )
            elif name == TRANSACTIONS and not topic.reassigning:
                await self.raise_min_isr(name, desired_min_isr(self._config, factor))

    async def raise_min_isr(self, name: str, minimum: int) -> None:
        """Raise min.insync.replicas of a topic once it has the replicas for it.

        A decided transaction must not be known to one broker only.
        """
        overrides = stored_topic_overrides(self._state.image.topic_configs.get(name, {})).values
        current = overrides.get("min.insync.replicas", 1)
        if isinstance(current, int) and current < minimum:
            await self._controller.set_topic_config(
                name,
                lambda image: {
                    **image.topic_configs.get(name, {}),
                    "min.insync.replicas": str(minimum),
                },
            )

    def _next_rebalance(self) -> float:
        interval_s = self._config.integer("leader.imbalance.check.interval.seconds")
        return asyncio.get_running_loop().time() + interval_s

    async def drop_deletion_records(self) -> None:
        """Drop the records of deletions that every broker has carried out.

        A broker with replicas of the topic needs all its directories online for that. All other
        live brokers must know the deletion, too: group coordinators use the records to decide which
        offsets to delete.
        """
        image, feed = self._state.image, self._state.term.feed
        if any(feed.applied_position(node) != feed.position for node in image.brokers):
            return
        done = {
            name: list(ids)
            for name, ids in image.being_deleted.items()
            if all(map(self._has_deleted, image.deleted_from[name]))
            and not _still_exists(image, name, ids)
        }
        if done and feed.position:
            await self._controller.forget_deleted(done)

    def _has_deleted(self, node: int) -> bool:
        term = self._state.term
        able = node in term.image.brokers and self._partitions.unavailable.has_all_directories(node)
        return able and term.feed.applied_position(node) == term.feed.position


def _still_exists(image: ClusterImage, name: str, ids: Collection[bytes]) -> bool:
    """Return whether a topic that is recorded as deleted has not been deleted yet."""
    topic = image.topics.get(name)
    return topic is not None and topic.topic_id in ids
