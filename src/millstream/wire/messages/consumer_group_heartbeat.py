"""ConsumerGroupHeartbeat (key 68): join, stay in, change and leave a consumer group (KIP-848).

v1 adds regular expressions that the broker resolves, and lets the client choose its member id.
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int16, int32, string, struct, uuid


class TopicPartitions(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array("int32", "0+")


class ConsumerGroupHeartbeatRequest(Struct, versions="0-1", flexible="0+"):
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array("string", "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, "0+", nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array("int32", "0+")


class Assignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = array(
        ConsumerGroupHeartbeatResponseTopicPartitions, "0+"
    )


class ConsumerGroupHeartbeatResponse(Struct, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = struct(Assignment, "0+", nullable="0+", null_default=True)
