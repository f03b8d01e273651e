"""DeleteRecords: advance the log start of partitions; -1 means up to the high watermark.

The response comes when no replica of a live broker has the records any more, as in Kafka. Until
then a follower could still serve them to a consumer, or become the leader. A topic that is only
compacted gets POLICY_VIOLATION.
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
    """A deletion on this broker, with its leadership.

    Only the leader of that time can say whether the other replicas have deleted the records too.
    """

    result: DeleteRecordsPartitionResult
    partition: Partition
    leader_since_epoch: int


async def handle(
    services: LogServices, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    pace = Pace()
    # If a partition is named more than once, the last offset counts, as in Kafka.
    requested: dict[TopicPartition, DeleteRecordsPartition] = {}
    for topic in request.topics:
        for row in topic.partitions:
            requested[TopicPartition(topic.name, row.partition_index)] = row
            await pace.rest()
    deleted: list[_Deleted] = []
    rows: dict[str, list[DeleteRecordsPartitionResult]] = defaultdict(list)
    for tp, row in requested.items():
        rows[tp.topic].append(_delete(services, tp.topic, row, deleted))
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
    for deletion in deleted:
        await _wait_for_replicas(services, deletion, deadline - loop.time())
        await pace.rest()
    return DeleteRecordsResponse(topics=topics)


def _delete(
    services: LogServices,
    topic: str,
    row: DeleteRecordsPartition,
    deleted: list[_Deleted],
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=row.partition_index, low_watermark=-1)
    try:
        partition = services.replicas.leader(topic, row.partition_index)
        log = partition.online_log
        if log.config.compact and not log.config.delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        before = log.high_watermark if row.offset == -1 else row.offset
        if before < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        result.low_watermark = log.delete_records(before)
    except ApiError as error:
        result.error_code = error.code
    else:
        # Followers advance their log start with the next fetch.
        partition.waiters.notify_watchers()
        deleted.append(_Deleted(result, partition, partition.leader_since_epoch))
    return result


async def _wait_for_replicas(services: LogServices, deleted: _Deleted, timeout_s: float) -> None:
    result, partition, leader_since_epoch = deleted
    try:
        await services.replicas.wait_low_watermark(
            partition, result.low_watermark, leader_since_epoch, timeout_s
        )
    except ApiError as error:
        result.error_code, result.low_watermark = error.code, -1
