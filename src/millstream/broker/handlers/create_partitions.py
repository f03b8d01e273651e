"""CreatePartitions: raise the partition count of topics. It can never be lowered.

The controller executes it. One request may add at most ``MAX_CREATED`` partitions, which is also
the limit of CreateTopics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.cluster.controller.changes import Outcome
from millstream.control.topics import MAX_CREATED
from millstream.core.errors import ErrorCode
from millstream.ports.turns import Pace
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    pace = Pace()
    counts: Counter[str] = Counter()
    for topic in request.topics:
        counts[topic.name] += 1
        await pace.rest()
    outcomes: dict[str, Outcome] = {}
    room = MAX_CREATED
    for topic in request.topics:
        await pace.rest()
        if counts[topic.name] > 1:
            outcomes[topic.name] = Outcome(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        else:
            known = services.image.topics.get(topic.name)
            added = topic.count - (known.partition_count if known is not None else 0)
            outcome = outcomes[topic.name] = await _grow(
                services, topic, request.validate_only, room
            )
            if not outcome.code:
                room -= added
    response = CreatePartitionsResponse()
    for name, outcome in outcomes.items():
        response.results.append(
            CreatePartitionsTopicResult(
                name=name, error_code=outcome.code, error_message=outcome.message
            )
        )
        await pace.rest()
    return response


async def _grow(
    services: ControllerServices, topic: CreatePartitionsTopic, validate_only: bool, room: int
) -> Outcome:
    assignments = None
    if topic.assignments is not None:
        assignments = [tuple(row.broker_ids) for row in topic.assignments]
    return await services.local_controller.grow_topic(
        topic.name, topic.count, assignments, validate_only=validate_only, left=room
    )
