"""OffsetForLeaderEpoch: where an epoch ended, so that a reader can tell whether what it read still exists (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_one(broker, topic.topic, one) for one in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _one(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.replicas.leader(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        log = partition.online_log
    except ApiError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    if asked.leader_epoch == partition.leader_epoch:
        epoch, end_offset = asked.leader_epoch, log.log_end_offset
    else:
        epoch, end_offset = log.epochs.end_offset(asked.leader_epoch, log.log_end_offset)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
