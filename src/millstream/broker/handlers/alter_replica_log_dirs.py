"""AlterReplicaLogDirs: relocate replicas to another log directory of this broker.

The response says that the relocation has begun, or why not. It does not matter whether this broker
leads them. For a replica that it does not have (REPLICA_NOT_AVAILABLE) it remembers the directory,
and creates the replica there later, as Kafka does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.turns import Steps
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import LogDirectoryServices


def handle(
    services: LogDirectoryServices, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Steps[AlterReplicaLogDirsResponse]:
    # If a partition is named more than once, the last directory counts, as in Kafka.
    paths: dict[TopicPartition, str] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                paths[TopicPartition(topic.name, index)] = directory.path
                yield
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for (name, index), path in paths.items():
        code = _begin(services, name, index, path)
        results[name].append(
            AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        )
        yield
    response = AlterReplicaLogDirsResponse()
    for name, rows in results.items():
        response.results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=rows))
        yield
    return response


def _begin(services: LogDirectoryServices, topic: str, index: int, path: str) -> ErrorCode:
    tp = TopicPartition(topic, index)
    try:
        directory = services.logs.online_dir(path)
        if services.logs.get(tp) is None:
            services.logs.prefer(tp, directory)
        services.replicas.replica(topic, index)
        services.maintenance.begin_relocation(tp, path)
    except ApiError as error:
        not_here = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.REPLICA_NOT_AVAILABLE if not_here else error.code
    return ErrorCode.NONE
