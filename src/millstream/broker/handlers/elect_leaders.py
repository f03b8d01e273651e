"""ElectLeaders: elect preferred or unclean leaders; null partitions mean all that need it.

* v0 elects preferred leaders only, and has no error for the whole response.
* v1: the type of election (KIP-460).

The controller executes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.turns import Pace, Steps, in_slices
from millstream.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import MemberServices

PREFERRED, UNCLEAN = 0, 1


async def handle(
    services: MemberServices, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    partitions = None
    if request.topic_partitions is not None:
        partitions = list(await in_slices(_partitions(request)))
    outcomes = await services.member.partitions.elections.elect_leaders(
        partitions, unclean=request.election_type == UNCLEAN
    )
    pace = Pace()
    by_topic: dict[str, list[PartitionResult]] = {}
    for tp, code in outcomes.items():
        await pace.rest()
        row = PartitionResult(
            partition_id=tp.partition, error_code=code, error_message=code.message if code else None
        )
        by_topic.setdefault(tp.topic, []).append(row)
    response = ElectLeadersResponse()
    for topic, rows in by_topic.items():
        response.replica_election_results.append(
            ReplicaElectionResult(topic=topic, partition_result=rows)
        )
        await pace.rest()
    return response


def _partitions(request: ElectLeadersRequest) -> Steps[dict[TopicPartition, None]]:
    """Return each requested partition once, as in Kafka."""
    partitions: dict[TopicPartition, None] = {}
    for topic in request.topic_partitions or ():
        for index in topic.partitions:
            partitions[TopicPartition(topic.topic, index)] = None
            yield
    return partitions
