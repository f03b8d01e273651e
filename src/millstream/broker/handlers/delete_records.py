"""DeleteRecords: move the log start of partitions forward; -1 means up to the high watermark.

Answered when no replica whose broker is there has the records any more, as in Kafka: until then a follower that is read from, or takes over,
could still show them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.context import RequestContext
from millstream.cluster.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


class _Deleted(NamedTuple):
    """What was deleted here, and in whose reign: only that leader can say that the others have deleted it too."""

    result: DeleteRecordsPartitionResult
    partition: Partition
    reign: int


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    deleted: list[_Deleted] = []
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name, partitions=[_one(broker, topic.name, one, deleted) for one in topic.partitions]
        )
        for topic in request.topics
    ]
    try:
        await broker.replicas.log_starts_durable()
    except ApiError as error:
        for row in (row for topic in topics for row in topic.partitions):
            row.error_code, row.low_watermark = row.error_code or error.code, -1
        return DeleteRecordsResponse(topics=topics)
    timeout_s = max(request.timeout_ms, 0) / 1000
    await asyncio.gather(*(_everywhere(broker, one, timeout_s) for one in deleted))
    return DeleteRecordsResponse(topics=topics)


def _one(
    broker: Broker,
    topic: str,
    asked: DeleteRecordsPartition,
    deleted: list[_Deleted],
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition = broker.replicas.leader(topic, asked.partition_index)
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
        partition.tell_watchers()  # followers move theirs when they hear of it
        deleted.append(_Deleted(result, partition, partition.reign))
    return result


async def _everywhere(broker: Broker, deleted: _Deleted, timeout_s: float) -> None:
    result, partition, reign = deleted
    try:
        await broker.replicas.wait_low_watermark(partition, result.low_watermark, reign, timeout_s)
    except ApiError as error:
        result.error_code, result.low_watermark = error.code, -1
