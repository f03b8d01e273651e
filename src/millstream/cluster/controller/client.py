"""Requests of a broker to the controller, in this process or over the network.

Methods raise ApiError (NOT_CONTROLLER while there is no controller) or OSError. Callers retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from millstream.cluster.controller.changes import Outcome
from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.cluster.membership.member import CREATIONS, TO_CONTROLLER, ClusterMember
from millstream.cluster.peers import check
from millstream.cluster.replicas.isr import Outcomes
from millstream.control.topics import NewTopic
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
    PartitionData,
    TopicData,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.schema import Struct

_PRODUCER_IDS_TIMEOUT_S = 10.0
_RETRY_S = 0.1


class ControllerClient:
    """The controller, wherever it is."""

    def __init__(self, member: ClusterMember) -> None:
        self._member = member

    async def alter_partitions(self, requests: Sequence[IsrRequest]) -> Outcomes:
        member = self._member
        if member.state.active:
            return await member.partitions.isr.alter_partitions(
                member.node_id, member.broker_epoch, requests
            )
        topics: dict[bytes, TopicData] = {}
        for proposal in requests:
            topic = topics.setdefault(proposal.topic_id, TopicData(topic_id=proposal.topic_id))
            topic.partitions.append(_partition_data(proposal))
        request = AlterPartitionRequest(
            broker_id=member.node_id, broker_epoch=member.broker_epoch, topics=list(topics.values())
        )
        response: AlterPartitionResponse = await self._request(request)
        check(response.error_code)
        return {
            (topic.topic_id, row.partition_index): _outcome(row)
            for topic in response.topics
            for row in topic.partitions
        }

    async def allocate_producer_ids(self) -> range:
        """Return a block of new ids; wait some time for a controller.

        Clients may get the error that is raised afterwards. COORDINATOR_LOAD_IN_PROGRESS lets a
        starting producer retry; NOT_CONTROLLER ends older Java producers.
        """
        deadline = asyncio.get_running_loop().time() + _PRODUCER_IDS_TIMEOUT_S
        while True:
            try:
                return await self._allocate_producer_ids()
            except (ApiError, OSError) as error:
                retriable = not isinstance(error, ApiError) or error.code in (
                    ErrorCode.NOT_CONTROLLER,
                    ErrorCode.STALE_BROKER_EPOCH,
                )
                if not retriable:
                    raise
                if asyncio.get_running_loop().time() > deadline:
                    raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from None
            await asyncio.sleep(_RETRY_S)

    async def _allocate_producer_ids(self) -> range:
        member = self._member
        if member.state.active:
            return await member.controller.allocate_producer_ids(member.node_id)
        request = AllocateProducerIdsRequest(
            broker_id=member.node_id, broker_epoch=member.broker_epoch
        )
        response: AllocateProducerIdsResponse = await self._request(request)
        check(response.error_code)
        return range(
            response.producer_id_start, response.producer_id_start + response.producer_id_len
        )

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, Outcome]:
        """Create topics on behalf of brokers: internal ones, and those created automatically.

        If no controller can create them now, the client retries.
        """
        try:
            return await self._create_topics(topics)
        except (ApiError, OSError) as error:
            failed = Outcome(ErrorCode.LEADER_NOT_AVAILABLE, str(error))
            return dict.fromkeys((new.name for new in topics), failed)

    async def _create_topics(self, topics: Sequence[NewTopic]) -> dict[str, Outcome]:
        member = self._member
        if member.state.active:
            return await member.controller.create_topics(topics)
        request = CreateTopicsRequest(topics=[_creatable(new) for new in topics])
        response: CreateTopicsResponse = await self._request(request, CREATIONS)
        return {
            row.name: Outcome(ErrorCode.of(row.error_code), row.error_message)
            for row in response.topics
        }

    async def _request(self, request: Struct, purpose: str = TO_CONTROLLER) -> Any:
        host, port = await self._member.controller_address()
        timeout_s = self._member.request_timeout_s
        return await self._member.peers.ask(purpose, host, port, request, timeout_s=timeout_s)


def _partition_data(proposal: IsrRequest) -> PartitionData:
    return PartitionData(
        partition_index=proposal.partition,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=node, broker_epoch=epoch) for node, epoch in proposal.isr
        ],
        partition_epoch=proposal.partition_epoch,
    )


def _outcome(row: AlterPartitionResponsePartitionData) -> PartitionState | ErrorCode:
    if row.error_code:
        return ErrorCode.of(row.error_code)
    return PartitionState(
        row.leader_id, row.leader_epoch, tuple(row.isr), partition_epoch=row.partition_epoch
    )


def _creatable(new: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=new.name,
        num_partitions=new.partitions,
        replication_factor=new.replication_factor,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in new.configs],
    )
