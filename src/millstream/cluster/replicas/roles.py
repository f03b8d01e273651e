"""The roles of replicas on this broker: leader or follower, as the image says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from millstream.cluster.events import ReplicaEvents
from millstream.cluster.replicas.partition import Partition
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.znodes import PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.types import NO_LEADER, TopicPartition

log = logging.getLogger("millstream.replicas")


class Fetchers(Protocol):
    """Fetches the records of replicas that other brokers lead."""

    def follow(self, partition: Partition) -> None:
        """Fetch from its leader, in its epoch; drop responses for an older epoch."""

    def forget(self, tp: TopicPartition) -> None:
        """Stop fetching: the replica is led here, or has no leader, or is gone."""


class NoFetchers:
    """Fetches nothing."""

    def follow(self, partition: Partition) -> None:
        pass

    def forget(self, tp: TopicPartition) -> None:
        pass


class ReplicaRoles:
    """Makes replicas leaders and followers."""

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        config: BrokerConfig,
        steady_ms: Callable[[], int],
        fetchers: Fetchers,
        events: ReplicaEvents,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._config = config
        self._steady_ms = steady_ms
        self._fetchers = fetchers
        self._events = events
        self._with_followers: dict[TopicPartition, Partition] = {}

    @property
    def with_followers(self) -> Collection[Partition]:
        """The partitions that this broker leads and that have other replicas."""
        return self._with_followers.values()

    def assume(self, partition: Partition, topic: TopicImage) -> None:
        """Give a replica the role that the image has for it."""
        index = partition.tp.partition
        state = topic.states.get(index)
        if state is None:
            return  # its state comes with a later change
        if is_outdated(partition, state):
            return  # this role would truncate records that were acknowledged since
        if partition.log is not None:
            # A replica outside the ISR may lack tombstones. If they were removed, it would bring
            # back the records that they deleted.
            partition.log.may_drop_deletions = set(topic.replicas[index]) <= set(state.isr)
        if state.leader == self._node_id:
            self._become_leader(partition, state, topic.replicas[index])
        else:
            self._become_follower(partition, state)

    def _become_leader(
        self, partition: Partition, state: PartitionState, replicas: Sequence[int]
    ) -> None:
        self._fetchers.forget(partition.tp)
        partition.lead(
            self._node_id,
            state,
            replicas,
            steady_ms=self._steady_ms,
            max_lag_ms=self._config.integer("replica.lag.time.max.ms"),
            eligible=partial(self._may_be_in_sync, partition.tp),
        )
        if partition.followers is not None:
            self._with_followers[partition.tp] = partition
        else:
            self._with_followers.pop(partition.tp, None)
        if partition.log is not None:
            self._events.led(partition)

    def _become_follower(self, partition: Partition, state: PartitionState) -> None:
        was_leader = partition.leader == self._node_id
        partition.follow(state)
        self._with_followers.pop(partition.tp, None)
        if was_leader:
            self._events.lost(partition.tp)
        if state.leader == NO_LEADER or partition.log is None:
            self._fetchers.forget(partition.tp)
        else:
            self._fetchers.follow(partition)

    def _may_be_in_sync(self, tp: TopicPartition, node: int, broker_epoch: int) -> bool:
        image = self._image
        registered = image.brokers.get(node)
        if registered is None or registered.epoch != broker_epoch or node in image.stopping:
            return False
        # A follower without room has to wait for it, unless this leader has none either.
        return tp not in image.full.get(node, ()) or tp in image.full.get(self._node_id, ())

    def release(self, partition: Partition) -> None:
        """End the role of a replica that this broker no longer has."""
        self._fetchers.forget(partition.tp)
        if partition.leader == self._node_id:
            self._events.lost(partition.tp)
        self._with_followers.pop(partition.tp, None)


def is_outdated(partition: Partition, state: PartitionState | None) -> bool:
    """Return whether a state is older than what this broker knows of the partition.

    Epochs only grow, so such a state is metadata that was restored from a backup.
    """
    if state is None or state.leader_epoch >= partition.leader_epoch:
        return False
    log.error(
        "%s has leader epoch %d in the metadata, and had %d before: that is not followed, and its replica is kept",
        partition.tp,
        state.leader_epoch,
        partition.leader_epoch,
    )
    return True
