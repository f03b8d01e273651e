"""CreateTopics: create topics, or only validate the request.

* v4: -1 partitions or replicas mean the broker's default (KIP-464).
* v5: the response has the settings of the new topic (KIP-525).
* v7: the response has the topic id.

The controller executes it. Different from Kafka: ``topic_config_error_code`` is always 0, because
there are no ACLs that could hide the settings.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.configs.entries import topic_entries
from millstream.broker.net.context import RequestContext
from millstream.cluster.controller.changes import Outcome
from millstream.control.topics import NewTopic
from millstream.core.config import parse_topic_overrides
from millstream.core.errors import ErrorCode
from millstream.ports.turns import Pace
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ControllerServices


async def handle(
    services: ControllerServices, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    pace = Pace()
    counts: Counter[str] = Counter()
    topics: dict[str, NewTopic] = {}
    for topic in request.topics:
        counts[topic.name] += 1
        if counts[topic.name] == 1:
            topics[topic.name] = await _new_topic(topic, pace)
        await pace.rest()
    repeated = [name for name, count in counts.items() if count > 1]
    for name in repeated:
        del topics[name]
    outcomes = await services.local_controller.create_topics(
        list(topics.values()), validate_only=request.validate_only
    )
    for name in repeated:
        outcomes[name] = Outcome(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    response = CreateTopicsResponse()
    for name, outcome in outcomes.items():
        response.topics.append(_result(services, name, outcome))
        await pace.rest()
    return response


async def _new_topic(topic: CreatableTopic, pace: Pace) -> NewTopic:
    assignment = []
    for row in topic.assignments:
        assignment.append((row.partition_index, tuple(row.broker_ids)))
        await pace.rest()
    configs = []
    for config in topic.configs:
        configs.append((config.name, config.value))
        await pace.rest()
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple(assignment),
        tuple(configs),
    )


def _result(services: ControllerServices, name: str, outcome: Outcome) -> CreatableTopicResult:
    if outcome.plan is None:
        return CreatableTopicResult(
            name=name,
            error_code=outcome.code,
            error_message=outcome.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    topic = outcome.plan.topic
    overrides = parse_topic_overrides(outcome.plan.configs)
    return CreatableTopicResult(
        name=name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=len(topic.replicas[0]),
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.text,
                read_only=False,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in topic_entries(services.config, overrides)
        ],
    )
