"""OffsetFetch (key 9): the committed offsets of one group (to v7) or of many (from v8).

In v2 and later null means all topics. v7 can request stable offsets only (KIP-447), v9 has the
member's epoch, v10 topic ids.
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Struct):
    name: str = string("0-7")
    partition_indexes: list[int] = array("int32", "0-7")


class OffsetFetchRequestTopics(Struct):
    name: str = string("8-9")
    topic_id: bytes = uuid("10+")
    partition_indexes: list[int] = array("int32", "8+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None)
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "8+", nullable="8+"
    )


class OffsetFetchRequest(Struct, versions="1-10", flexible="6+"):
    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")
    committed_leader_epoch: int = int32("5-7", default=-1)
    metadata: str | None = string("0-7", nullable="0-7")
    error_code: int = int16("0-7")


class OffsetFetchResponseTopic(Struct):
    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32("8+")
    committed_offset: int = int64("8+")
    committed_leader_epoch: int = int32("8+", default=-1)
    metadata: str | None = string("8+", nullable="8+")
    error_code: int = int16("8+")


class OffsetFetchResponseTopics(Struct):
    name: str = string("8-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


class OffsetFetchResponse(Struct, versions="1-10", flexible="6+"):
    throttle_time_ms: int = int32("3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")
