"""TxnOffsetCommit (key 28): offsets that take effect when the transaction commits.

v3 has the member (KIP-447), v5 adds the group to the transaction implicitly.
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int16, int32, int64, string, uuid


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1)
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string("0-5")
    topic_id: bytes = uuid("6+")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(Struct, versions="0-6", flexible="3+"):
    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id_or_member_epoch: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string("0-5")
    topic_id: bytes = uuid("6+")
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, "0+"
    )


class TxnOffsetCommitResponse(Struct, versions="0-6", flexible="3+"):
    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")
