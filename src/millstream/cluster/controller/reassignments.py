"""The controller's reassignments of replicas to other brokers (KIP-455).

``control/reassignment.py`` decides the steps for one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millstream.cluster.controller.leader_election import electable_brokers
from millstream.cluster.controller.term import ControllerState, change
from millstream.control import reassignment, znodes
from millstream.control.growth import kept_small_after
from millstream.control.image import TopicImage
from millstream.control.moves import Reassignments
from millstream.control.placement import check_assignment
from millstream.control.topics import NodeWrites
from millstream.control.znodes import Assignment, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.turns import Pace

# Number of nodes that are encoded before they are written.
_NODES_PER_SLICE = 500


class PartitionReassignments:
    """Starts, cancels and writes reassignments while this broker is the controller."""

    def __init__(self, state: ControllerState) -> None:
        self.state = state

    @change
    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_factor: bool = True,
        by_operator: bool = True,
    ) -> dict[TopicPartition, ApiError | None]:
        """Start reassignments to these replicas; None cancels one that is in progress.

        An internal topic that an operator gives fewer replicas is recorded as such, because the
        controller would otherwise add replicas again.
        """
        results: dict[TopicPartition, ApiError | None] = {}
        reassignments, pace = Reassignments(), Pace()
        accepted: dict[TopicPartition, Sequence[int] | None] = {}
        for tp, target in targets.items():
            try:
                self._plan(tp, target, may_change_factor, reassignments)
                results[tp] = None
                accepted[tp] = target
            except ApiError as error:
                results[tp] = error
            await pace.rest()
        if by_operator:
            small = kept_small_after(self.state.image, accepted)
            if small != self.state.image.kept_small:
                await self.state.commit([(znodes.KEPT_SMALL, znodes.encode_kept_small(small))])
        await self.write(reassignments)
        return results

    def _plan(
        self,
        tp: TopicPartition,
        target: Sequence[int] | None,
        may_change_factor: bool,
        reassignments: Reassignments,
    ) -> None:
        image = self.state.image
        topic = image.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.states:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state, current = topic.states[tp.partition], topic.assignment(tp.partition)
        if target is None:
            cancelled = reassignment.cancel(current, state, electable_brokers(image))
            self.add(topic, tp.partition, *cancelled, reassignments)
            return
        # The broker of a current replica may be down for the time being.
        replicas = check_assignment(target, {*image.registered_brokers(), *current.replicas})
        if not may_change_factor and len(replicas) != len(current.origin):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(current.origin)} to {len(replicas)}",
            )
        after = reassignment.begin(current, replicas)
        if reassignment.is_complete(after, state):
            after, state = reassignment.complete(after, state, electable_brokers(image))
        self.add(topic, tp.partition, after, state, reassignments)

    def add(
        self,
        topic: TopicImage,
        index: int,
        assignment: Assignment,
        state: PartitionState,
        reassignments: Reassignments,
    ) -> None:
        """Add a partition's replicas and state, which go into one write."""
        reassignments.add(topic, index, assignment, self.state.term.stamped(state))

    async def write(self, reassignments: Reassignments) -> None:
        """Write in slices, so that a topic with thousands of partitions does not delay others."""
        groups: list[NodeWrites] = []
        nodes = 0
        for group in reassignments.groups():
            groups.append(group)
            nodes += len(group)
            if nodes >= _NODES_PER_SLICE:
                await self.state.commit(*groups)
                groups, nodes = [], 0
        await self.state.commit(*groups)

    def in_progress(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        """Return the reassignments in progress, of these partitions or of all."""
        topics = self.state.image.topics
        if partitions is None:
            partitions = [
                TopicPartition(topic.name, index)
                for topic in topics.values()
                for index in topic.reassigning
            ]
        assignments = {
            tp: topics[tp.topic].reassigning.get(tp.partition)
            for tp in partitions
            if tp.topic in topics
        }
        return {tp: assignment for tp, assignment in assignments.items() if assignment is not None}
