"""AlterPartition: leaders propose another ISR; the controller decides. v3 carries the epoch of each member (KIP-903)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    PartitionData,
)

if TYPE_CHECKING:
    from millstream.broker.services import MemberServices


async def handle(
    services: MemberServices, context: RequestContext, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    pace = Pace()
    asked: list[IsrRequest] = []
    for topic in request.topics:
        for row in topic.partitions:
            members = _members(row)
            epochs = row.leader_epoch, row.partition_epoch
            asked.append(IsrRequest(topic.topic_id, row.partition_index, *epochs, members))
            await pace.rest()
    try:
        outcomes = await services.member.partitions.isr.alter_partitions(
            request.broker_id, request.broker_epoch, asked
        )
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.code)
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[
                    _row(one.partition_index, outcomes[topic.topic_id, one.partition_index])
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _members(one: PartitionData) -> tuple[tuple[int, int], ...]:
    if one.new_isr_with_epochs:
        return tuple((member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs)
    return tuple((node, -1) for node in one.new_isr)


def _row(index: int, outcome: PartitionState | ErrorCode) -> AlterPartitionResponsePartitionData:
    if isinstance(outcome, ErrorCode):
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=outcome)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        partition_epoch=outcome.partition_epoch,
    )
