"""The controller's elections of partition leaders.

``control/election.py`` decides for one partition. This module finds the partitions that an event or
an operator concerns, and writes the new states in as few writes as possible.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence

from millstream.cluster.controller.term import ControllerState, change, uninterrupted
from millstream.cluster.controller.unavailable_replicas import UnavailableReplicas
from millstream.control.election import Brokers, elect, elect_preferred, elect_unclean
from millstream.control.image import ClusterImage, TopicImage
from millstream.control.topics import NodeWrites
from millstream.control.znodes import PartitionState
from millstream.core.errors import ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.ports.turns import Pace

# Number of partitions that are examined before other tasks get a turn.
_SLICE = 2000


class LeaderElections:
    """Elects leaders while this broker is the controller."""

    def __init__(
        self,
        state: ControllerState,
        unavailable: UnavailableReplicas,
        *,
        unclean: Callable[[ClusterImage, str], bool],
    ) -> None:
        """``unclean`` returns whether a topic allows unclean elections."""
        self.state = state
        self._unavailable = unavailable
        self._unclean = unclean

    async def elect_where(
        self,
        affected: Callable[[TopicImage], Collection[int]],
        topics: Collection[TopicImage] | None = None,
    ) -> None:
        """Elect leaders for all partitions that an event affects, of these topics or of all.

        The caller holds the lock. ``affected`` costs a fraction of a microsecond for each partition
        of the cluster; all other costs arise only for the partitions that it returns.
        """
        groups: list[NodeWrites] = []
        brokers, seen = electable_brokers(self.state.image), 0
        for topic in self.state.image.topics.values() if topics is None else topics:
            indexes = affected(topic)
            if indexes:
                groups += self._elect_partitions(topic, indexes, brokers)
            seen += len(topic.states)
            if seen >= _SLICE:
                seen = 0
                # The image does not change: the lock admits one change at a time.
                await asyncio.sleep(0)
        await self.state.commit(*groups)

    def _elect_partitions(
        self, topic: TopicImage, indexes: Iterable[int], brokers: Brokers
    ) -> list[NodeWrites]:
        unclean = self._unclean(self.state.image, topic.name)
        writes: list[NodeWrites] = []
        for index in indexes:
            state = topic.states[index]
            after = self.elect(topic, index, state, brokers, unclean=unclean)
            if after != state:
                writes.append([self.state.term.state_write(topic, index, after)])
        return writes

    def elect(
        self,
        topic: TopicImage,
        index: int,
        state: PartitionState,
        brokers: Brokers,
        *,
        unclean: bool,
    ) -> PartitionState:
        """Return the state of a partition after an election; it may be the same."""
        return elect(
            state,
            topic.replicas[index],
            brokers,
            unclean=unclean,
            offline=self._unavailable.brokers_offline(topic, index),
            full=self._unavailable.brokers_full(topic, index),
        )

    @uninterrupted
    async def elect_offline(self) -> None:
        """Elect leaders for partitions without one: they may now allow an unclean election."""
        async with self.state.lock:
            await self.elect_where(leaderless)

    @change
    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Carry out an operator's election for these partitions, or for all that need one."""
        results: dict[TopicPartition, ErrorCode] = {}
        groups: list[NodeWrites] = []
        pace = Pace()
        for tp in partitions if partitions is not None else self._all_partitions():
            await pace.rest()
            code, after = self._elect_on_request(tp, unclean)
            if after is not None:
                topic = self.state.image.topics[tp.topic]
                groups.append([self.state.term.state_write(topic, tp.partition, after)])
            if partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                results[tp] = code
        await self.state.commit(*groups)
        return results

    def _all_partitions(self) -> list[TopicPartition]:
        topics = self.state.image.topics.values()
        return [TopicPartition(topic.name, index) for topic in topics for index in topic.states]

    def _elect_on_request(
        self, tp: TopicPartition, unclean: bool
    ) -> tuple[ErrorCode, PartitionState | None]:
        topic = self.state.image.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.states:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        state, replicas = topic.states[tp.partition], topic.replicas[tp.partition]
        brokers = electable_brokers(self.state.image)
        offline = self._unavailable.brokers_offline(topic, tp.partition)
        if unclean:
            if state.leader != NO_LEADER:
                return ErrorCode.ELECTION_NOT_NEEDED, None
            after = elect_unclean(state, replicas, brokers, offline=offline)
            rejection = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        else:
            if state.leader == replicas[0]:
                return ErrorCode.ELECTION_NOT_NEEDED, None
            after = elect_preferred(state, replicas, brokers, offline=offline)
            rejection = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return (ErrorCode.NONE, after) if after != state else (rejection, None)

    @uninterrupted
    async def rebalance_leaders(self, max_percent: int) -> None:
        """Return leadership to the preferred replicas of brokers that lead too few of theirs.

        ``max_percent``: the share of a broker's preferred partitions that others may lead.
        """
        async with self.state.lock:
            preferred, elsewhere = Counter[int](), Counter[int]()
            async for topic, index in all_partitions(self.state.image):
                first = topic.replicas[index][0]
                preferred[first] += 1
                elsewhere[first] += topic.states[index].leader != first
            imbalanced = {
                node
                for node, count in elsewhere.items()
                if count * 100 > max_percent * preferred[node]
            }
            groups: list[NodeWrites] = []
            brokers = electable_brokers(self.state.image)
            async for topic, index in all_partitions(self.state.image):
                state, replicas = topic.states[index], topic.replicas[index]
                if replicas[0] in imbalanced and index not in topic.reassigning:
                    offline = self._unavailable.brokers_offline(topic, index)
                    after = elect_preferred(state, replicas, brokers, offline=offline)
                    if after != state:
                        groups.append([self.state.term.state_write(topic, index, after)])
            await self.state.commit(*groups)


def electable_brokers(image: ClusterImage) -> Brokers:
    """Return the live brokers, and which of them are shutting down."""
    return Brokers(frozenset(image.brokers), image.stopping)


async def all_partitions(image: ClusterImage) -> AsyncIterator[tuple[TopicImage, int]]:
    """Yield every partition with a state, and give other tasks a turn from time to time.

    The caller holds the lock, so the image does not change in between.
    """
    seen = 0
    for topic in image.topics.values():
        for index in topic.states:
            seen += 1
            if not seen % _SLICE:
                await asyncio.sleep(0)
            yield topic, index


def leaderless(topic: TopicImage) -> Collection[int]:
    """Return the partitions without a leader."""
    return [index for index, state in topic.states.items() if state.leader == NO_LEADER]
