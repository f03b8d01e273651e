"""OffsetForLeaderEpoch: where an epoch ended, so that a reader can tell whether what it read still exists (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker
    from millstream.cluster.partition import Partition


# So long it may take until followers have confirmed who leads; then the client asks again.
_CONFIRM_S = 5.0


async def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[await _one(broker, topic.topic, one) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _one(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.replicas.leader(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        if asked.leader_epoch > partition.leader_epoch:
            await _check_later(partition)
        log = partition.online_log
    except ApiError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    if asked.leader_epoch == partition.leader_epoch:
        epoch, end_offset = asked.leader_epoch, log.log_end_offset
    else:
        epoch, end_offset = log.epochs.end_offset(asked.leader_epoch, log.log_end_offset)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


async def _check_later(partition: Partition) -> None:
    """Somebody has read in a later epoch than this leader's. Unless that was in an earlier topic of the same name, this one has been replaced without
    knowing it. Apache Kafka's says all the same that no such epoch is known, and the reader takes that for a log that was cut, and begins elsewhere."""
    try:
        await partition.confirm_leadership(_CONFIRM_S)
    except ApiError:
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH) from None
