"""AlterReplicaLogDirs: move replicas to another log directory of this broker; answered when the move has begun."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def handle(
    broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _begin(broker, topic.name, index, directory.path)
                row = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                results[topic.name].append(row)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=rows) for name, rows in results.items()
        ]
    )


def _begin(broker: Broker, topic: str, index: int, path: str) -> ErrorCode:
    try:
        if path not in broker.logs.dirs:
            return ErrorCode.LOG_DIR_NOT_FOUND
        broker.replicas.leader(topic, index)
        broker.mover.begin(TopicPartition(topic, index), path)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
