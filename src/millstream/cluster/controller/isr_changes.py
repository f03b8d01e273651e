"""The controller's decisions on the ISR changes that leaders propose (AlterPartition, KIP-497)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from millstream.cluster.controller.leader_election import LeaderElections, electable_brokers
from millstream.cluster.controller.reassignments import PartitionReassignments
from millstream.cluster.controller.term import ControllerState, uninterrupted
from millstream.cluster.controller.unavailable_replicas import UnavailableReplicas
from millstream.control import reassignment
from millstream.control.moves import Reassignments
from millstream.control.topics import NodeWrites
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace

log = logging.getLogger("millstream.controller")


class IsrRequest(NamedTuple):
    """A leader's proposal for one partition: members as (broker, broker epoch).

    Broker epochs are -1 if the version of the request has none.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class IsrChanges:
    """Accepts or rejects proposals while this broker is the controller."""

    def __init__(
        self,
        state: ControllerState,
        unavailable: UnavailableReplicas,
        elections: LeaderElections,
        reassignments: PartitionReassignments,
    ) -> None:
        self.state = state
        self._unavailable = unavailable
        self._elections = elections
        self._reassignments = reassignments

    @uninterrupted
    async def alter_partitions(
        self, node: int, broker_epoch: int, requests: Sequence[IsrRequest]
    ) -> dict[tuple[bytes, int], PartitionState | ErrorCode]:
        """Return the resulting state of each partition, or the reason of its rejection."""
        async with self.state.lock:
            if not self.state.is_registered(node, broker_epoch):
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            results: dict[tuple[bytes, int], ErrorCode] = {}
            groups: list[NodeWrites] = []
            completed = Reassignments()
            pace = Pace()
            for request in requests:
                await pace.rest()
                rejection = self._rejection(node, request)
                if rejection is None:
                    groups += self._accept(request, completed)
                results[request.topic_id, request.partition] = rejection or ErrorCode.NONE
            await self.state.commit(*groups)
            await self._reassignments.write(completed)
            return {key: self._outcome(node, key, code) for key, code in results.items()}

    def _rejection(self, node: int, request: IsrRequest) -> ErrorCode | None:
        """Return the reason to reject a proposal, with the codes of Kafka's controller.

        A leader with a lower epoch is stale. One with a higher epoch has heard from a newer
        controller than this one.
        """
        image = self.state.image
        name = image.names_by_id.get(request.topic_id)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic = image.topics[name]
        state = topic.states.get(request.partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if (
            request.leader_epoch > state.leader_epoch
            or request.partition_epoch > state.partition_epoch
        ):
            return ErrorCode.NOT_CONTROLLER
        if request.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if node != state.leader:
            return ErrorCode.INVALID_REQUEST
        if request.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        members = [member for member, _epoch in request.isr]
        valid = len(set(members)) == len(members) and set(members) <= set(
            topic.replicas[request.partition]
        )
        if node not in members or not valid:
            return ErrorCode.INVALID_REQUEST
        if not all(self._may_be_in_sync(member, epoch) for member, epoch in request.isr):
            return ErrorCode.INELIGIBLE_REPLICA
        full = self._unavailable.brokers_full(topic, request.partition)
        if node not in full and not set(members).isdisjoint(full):
            return ErrorCode.INELIGIBLE_REPLICA
        return None

    def _may_be_in_sync(self, node: int, epoch: int) -> bool:
        registered = self.state.image.brokers.get(node)
        if registered is None or node in self.state.image.stopping:
            return False
        return epoch in (-1, registered.epoch)

    def _accept(self, request: IsrRequest, completed: Reassignments) -> list[NodeWrites]:
        """Return the writes for a proposal. One that completes a reassignment goes to
        ``completed``.
        """
        image = self.state.image
        topic = image.topics[image.names_by_id[request.topic_id]]
        state = topic.states[request.partition]
        isr = tuple(member for member, _epoch in request.isr)
        after = PartitionState(state.leader, state.leader_epoch, isr)
        assignment = topic.assignment(request.partition)
        brokers = electable_brokers(image)
        if reassignment.is_complete(assignment, after):
            log.info("%s-%d has moved to %s", topic.name, request.partition, assignment.target)
            assignment, after = reassignment.complete(assignment, after, brokers)
            self._reassignments.add(topic, request.partition, assignment, after, completed)
            return []
        if state.leader in self._unavailable.brokers_full(topic, request.partition):
            # A leader without room may hand over to a member that has just joined.
            after = self._elections.elect(topic, request.partition, after, brokers, unclean=False)
        return [[self.state.term.state_write(topic, request.partition, after)]]

    def _outcome(
        self, node: int, key: tuple[bytes, int], code: ErrorCode
    ) -> PartitionState | ErrorCode:
        if code is not ErrorCode.NONE:
            return code
        image = self.state.image
        state = image.topics[image.names_by_id[key[0]]].states[key[1]]
        return state if state.leader == node else ErrorCode.NEW_LEADER_ELECTED
