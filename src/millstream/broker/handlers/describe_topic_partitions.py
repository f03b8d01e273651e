"""DescribeTopicPartitions: topics and partitions in pages (KIP-966).

The cursor names the first partition of the next page. Different from Kafka: there are no eligible
leader replicas (ELR), so these lists are empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from typing import TYPE_CHECKING

from millstream.broker.handlers.metadata import describe_partition, reachable_nodes
from millstream.broker.net.context import RequestContext
from millstream.broker.requests.authorized_operations import TOPIC_OPERATIONS
from millstream.control.image import INTERNAL_TOPICS, TopicImage
from millstream.control.topics import name_problem
from millstream.core.errors import ErrorCode
from millstream.ports.turns import Steps
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Container

    from millstream.broker.services import MetadataServices

_SORTED_AT_ONCE = 10_000


def handle(
    services: MetadataServices, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    limit = services.config.integer("max.request.partition.size.limit")
    room = min(limit, max(request.response_partition_limit, 1))
    first_topic, first_index = "", 0
    if request.cursor is not None:
        first_topic, first_index = request.cursor.topic_name, request.cursor.partition_index
        requested = [topic.name for topic in request.topics]
        if first_index < 0 or (requested and first_topic not in requested):
            return (yield from _invalid_cursor(requested))
    response = DescribeTopicPartitionsResponse()
    reachable = reachable_nodes(services, context)
    names = yield from _names(services, request, first_topic)
    for name in names:
        yield
        topic = services.image.topics.get(name)
        if topic is None:
            response.topics.append(_missing(name))
            continue
        start = first_index if name == first_topic else 0
        if room <= 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=start
            )
            break
        page = yield from _page(services, topic, start, room, reachable)
        response.topics.append(page)
        room -= len(page.partitions)
        if start + len(page.partitions) < topic.partition_count:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=start + len(page.partitions)
            )
            break
    return response


def _invalid_cursor(names: list[str]) -> Steps[DescribeTopicPartitionsResponse]:
    response = DescribeTopicPartitionsResponse()
    for name in names:
        response.topics.append(_problem(name, ErrorCode.INVALID_REQUEST))
        yield
    return response


def _names(
    services: MetadataServices, request: DescribeTopicPartitionsRequest, first: str
) -> Steps[Iterable[str]]:
    """Return the requested topics (none: all), sorted, from the cursor on. Sorts in steps."""
    requested: dict[str, None] = {}
    for topic in request.topics:
        requested[topic.name] = None
        yield
    names = list(requested or services.image.topics)
    chunks = []
    for start in range(0, len(names), _SORTED_AT_ONCE):
        chunks.append(
            sorted(name for name in names[start : start + _SORTED_AT_ONCE] if name >= first)
        )
        yield
    return merge(*chunks)


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    wrong = name_problem(name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if wrong else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _problem(name, code)


def _problem(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, is_internal=name in INTERNAL_TOPICS
    )


def _page(
    services: MetadataServices, topic: TopicImage, start: int, limit: int, reachable: Container[int]
) -> Steps[DescribeTopicPartitionsResponseTopic]:
    page = DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    for index in range(start, min(start + limit, topic.partition_count)):
        page.partitions.append(_partition(services, topic, index, reachable))
        yield
    return page


def _partition(
    services: MetadataServices, topic: TopicImage, index: int, reachable: Container[int]
) -> DescribeTopicPartitionsResponsePartition:
    row = describe_partition(services, topic, index, reachable)
    return DescribeTopicPartitionsResponsePartition(
        error_code=row.error_code,
        partition_index=index,
        leader_id=row.leader_id,
        leader_epoch=row.leader_epoch,
        replica_nodes=row.replica_nodes,
        isr_nodes=row.isr_nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=row.offline_replicas,
    )
