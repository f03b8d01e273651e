"""AlterPartition (key 56): a leader requests a new ISR from the controller (KIP-497).

v3 has the broker epoch of each member, so that a restarted broker is rejected (KIP-903).
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int8, int16, int32, int64, uuid


class BrokerState(Struct):
    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class PartitionData(Struct):
    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    new_isr: list[int] = array("int32", "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32("0+")


class TopicData(Struct):
    topic_id: bytes = uuid("2+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class AlterPartitionRequest(Struct, versions="2-3", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[TopicData] = array(TopicData, "0+")


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    isr: list[int] = array("int32", "0+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32("0+")


class AlterPartitionResponseTopicData(Struct):
    topic_id: bytes = uuid("2+")
    partitions: list[AlterPartitionResponsePartitionData] = array(
        AlterPartitionResponsePartitionData, "0+"
    )


class AlterPartitionResponse(Struct, versions="2-3", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[AlterPartitionResponseTopicData] = array(AlterPartitionResponseTopicData, "0+")
