"""DeleteRecords: move the log start of partitions forward; -1 means up to the high watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
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


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name, partitions=[_one(broker, topic.name, one) for one in topic.partitions]
        )
        for topic in request.topics
    ]
    try:
        await broker.replicas.log_starts_durable()
    except ApiError as error:
        for row in (row for topic in topics for row in topic.partitions):
            row.error_code, row.low_watermark = row.error_code or error.code, -1
    return DeleteRecordsResponse(topics=topics)


def _one(broker: Broker, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        log = broker.replicas.leader(topic, asked.partition_index).online_log
        if log.config.compact and not log.config.delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        before = log.high_watermark if asked.offset == -1 else asked.offset
        if before < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        result.low_watermark = log.delete_records(before)
    except ApiError as error:
        result.error_code = error.code
    return result
