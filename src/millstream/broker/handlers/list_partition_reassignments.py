"""ListPartitionReassignments: the ongoing reassignments; null topics mean all (KIP-455).

The controller executes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.types import TopicPartition
from millstream.ports.turns import Pace
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from millstream.broker.services import MemberServices


async def handle(
    services: MemberServices, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    requested = None
    if request.topics is not None:
        pace = Pace()
        requested = []
        topics = services.member.state.image.topics
        for topic in request.topics:
            reassigning = topics[topic.name].reassigning if topic.name in topics else {}
            if reassigning:
                indexes = dict.fromkeys(topic.partition_indexes)
                requested += [
                    TopicPartition(topic.name, index) for index in indexes if index in reassigning
                ]
            await pace.rest()
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for tp, reassignment in services.member.partitions.reassignments.in_progress(requested).items():
        by_topic.setdefault(tp.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=tp.partition,
                replicas=list(reassignment.replicas),
                adding_replicas=list(reassignment.adding),
                removing_replicas=list(reassignment.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            OngoingTopicReassignment(name=name, partitions=rows) for name, rows in by_topic.items()
        ],
    )
