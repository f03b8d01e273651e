"""AlterPartitionReassignments: reassign replicas to other brokers, or cancel that (null replicas).

* v1: the request may forbid a change of the replication factor. v0 allows it.

The controller executes it. The response says that the reassignment has begun (KIP-455).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.ports.turns import Pace
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import MemberServices


async def handle(
    services: MemberServices, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    pace = Pace()
    targets: dict[TopicPartition, list[int] | None] = {}
    for topic in request.topics:
        for row in topic.partitions:
            targets[TopicPartition(topic.name, row.partition_index)] = row.replicas
            await pace.rest()
    may_change_factor = request.allow_replication_factor_change
    outcomes = await services.member.partitions.reassignments.reassign(
        targets, may_change_factor=may_change_factor
    )
    by_topic: dict[str, list[ReassignablePartitionResponse]] = {}
    for tp, error in outcomes.items():
        await pace.rest()
        by_topic.setdefault(tp.topic, []).append(_row(tp.partition, error))
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor, error_message=None
    )
    for name, rows in by_topic.items():
        response.responses.append(ReassignableTopicResponse(name=name, partitions=rows))
        await pace.rest()
    return response


def _row(index: int, error: ApiError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index, error_message=None)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message
    )
