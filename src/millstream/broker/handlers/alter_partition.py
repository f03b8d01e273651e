"""AlterPartition: a leader proposes a new ISR, and the controller decides.

Between brokers only.

* v2: topics by id (KIP-841). The leader recovery state of v1 is ignored.
* v3: the broker epoch of each proposed member, so that a broker that has restarted since is
  rejected (KIP-903).
"""

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
    proposals: list[IsrRequest] = []
    for topic in request.topics:
        for row in topic.partitions:
            members = _members(row)
            epochs = row.leader_epoch, row.partition_epoch
            proposals.append(IsrRequest(topic.topic_id, row.partition_index, *epochs, members))
            await pace.rest()
    try:
        outcomes = await services.member.partitions.isr.alter_partitions(
            request.broker_id, request.broker_epoch, proposals
        )
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.code)
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[
                    _row(row.partition_index, outcomes[topic.topic_id, row.partition_index])
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _members(row: PartitionData) -> tuple[tuple[int, int], ...]:
    if row.new_isr_with_epochs:
        return tuple((member.broker_id, member.broker_epoch) for member in row.new_isr_with_epochs)
    return tuple((node, -1) for node in row.new_isr)


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
