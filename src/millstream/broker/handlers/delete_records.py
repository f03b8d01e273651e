"""DeleteRecords: move the log start of partitions forward; -1 means up to the high watermark.

Answered when no replica whose broker is there has the records any more, as in Kafka: until then a follower that is read from, or takes over,
could still show them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.net.context import RequestContext
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.turns import Pace
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import LogServices


class _Deleted(NamedTuple):
    """What was deleted here, and in whose leader_since_epoch: only that leader can say that the others have deleted it too."""

    result: DeleteRecordsPartitionResult
    partition: Partition
    leader_since_epoch: int


async def handle(
    services: LogServices, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    pace = Pace()
    # Of a partition that is named more than once the last offset counts, as in Kafka.
    asked: dict[TopicPartition, DeleteRecordsPartition] = {}
    for topic in request.topics:
        for row in topic.partitions:
            asked[TopicPartition(topic.name, row.partition_index)] = row
            await pace.rest()
    deleted: list[_Deleted] = []
    rows: dict[str, list[DeleteRecordsPartitionResult]] = defaultdict(list)
    for tp, row in asked.items():
        rows[tp.topic].append(_one(services, tp.topic, row, deleted))
        await pace.rest()
    topics = []
    for name, results in rows.items():
        topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
        await pace.rest()
    try:
        await services.replicas.log_starts_durable()
    except ApiError as error:
        for result in (result for results in rows.values() for result in results):
            result.error_code, result.low_watermark = result.error_code or error.code, -1
        return DeleteRecordsResponse(topics=topics)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(request.timeout_ms, 0) / 1000
    for one in deleted:
        await _everywhere(services, one, deadline - loop.time())
        await pace.rest()
    return DeleteRecordsResponse(topics=topics)


def _one(
    services: LogServices,
    topic: str,
    asked: DeleteRecordsPartition,
    deleted: list[_Deleted],
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition = services.replicas.leader(topic, asked.partition_index)
        log = partition.online_log
        if log.config.compact and not log.config.delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        before = log.high_watermark if asked.offset == -1 else asked.offset
        if before < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        result.low_watermark = log.delete_records(before)
    except ApiError as error:
        result.error_code = error.code
    else:
        partition.waiters.notify_watchers()  # followers move theirs when they hear of it
        deleted.append(_Deleted(result, partition, partition.leader_since_epoch))
    return result


async def _everywhere(services: LogServices, deleted: _Deleted, timeout_s: float) -> None:
    result, partition, leader_since_epoch = deleted
    try:
        await services.replicas.wait_low_watermark(
            partition, result.low_watermark, leader_since_epoch, timeout_s
        )
    except ApiError as error:
        result.error_code, result.low_watermark = error.code, -1
