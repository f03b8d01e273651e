"""ListPartitionReassignments: which replicas are on their way; null asks for all."""

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
    asked = None
    if request.topics is not None:
        pace = Pace()
        asked = []
        topics = services.member.state.image.topics
        for topic in request.topics:
            moving = topics[topic.name].reassigning if topic.name in topics else {}
            if moving:
                indexes = dict.fromkeys(topic.partition_indexes)
                asked += [TopicPartition(topic.name, index) for index in indexes if index in moving]
            await pace.rest()
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for tp, one in services.member.partitions.reassignments.in_progress(asked).items():
        by_topic.setdefault(tp.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=tp.partition,
                replicas=list(one.replicas),
                adding_replicas=list(one.adding),
                removing_replicas=list(one.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[OngoingTopicReassignment(name=name, partitions=rows) for name, rows in by_topic.items()],
    )
