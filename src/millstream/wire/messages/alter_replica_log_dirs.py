"""AlterReplicaLogDirs (key 34): move replicas between the log directories of this broker."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int16, int32, string


class AlterReplicaLogDirTopic(Struct):
    name: str = string("0+")
    partitions: list[int] = array("int32", "0+")


class AlterReplicaLogDir(Struct):
    path: str = string("0+")
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic, "0+")


class AlterReplicaLogDirsRequest(Struct, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir, "0+")


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = string("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(
        AlterReplicaLogDirPartitionResult, "0+"
    )


class AlterReplicaLogDirsResponse(Struct, versions="1-2", flexible="2+"):
    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult, "0+")
