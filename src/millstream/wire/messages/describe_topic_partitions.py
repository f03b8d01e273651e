"""DescribeTopicPartitions (key 75): topics and partitions in pages, with a cursor (KIP-966)."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, boolean, int16, int32, string, struct, uuid


class TopicRequest(Struct):
    name: str = string("0+")


class Cursor(Struct):
    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsRequest(Struct, versions="0", flexible="0+"):
    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: Cursor | None = struct(Cursor, "0+", nullable="0+", null_default=True)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    replica_nodes: list[int] = array("int32", "0+")
    isr_nodes: list[int] = array("int32", "0+")
    eligible_leader_replicas: list[int] | None = array("int32", "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = array("int32", "0+", nullable="0+", default=None)
    offline_replicas: list[int] = array("int32", "0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: bytes = uuid("0+")
    is_internal: bool = boolean("0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = int32("0+", default=-2147483648)


class DescribeTopicPartitionsResponseCursor(Struct):
    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, "0+"
    )
    next_cursor: DescribeTopicPartitionsResponseCursor | None = struct(
        DescribeTopicPartitionsResponseCursor, "0+", nullable="0+", null_default=True
    )
