"""OffsetForLeaderEpoch: where an epoch ended, so that a reader can tell whether what it read still exists (KIP-320)."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.cluster.replicas.partition import Partition, unconfirmed_leaders
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.services import LogServices
# So long it may take until followers have confirmed who leads; then the client asks again.
_CONFIRM_S = 5.0


async def handle(
    services: LogServices, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    pace = Pace()
    confirmed = await _confirmed(services, request, pace)
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        rows: list[EpochEndOffset] = []
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        for one in topic.partitions:
            rows.append(_one(services, topic.topic, one, confirmed))
            await pace.rest()
    return response


async def _confirmed(
    services: LogServices, request: OffsetForLeaderEpochRequest, pace: Pace
) -> Container[Partition]:
    """Of those that are asked for a later epoch than this leader's: somebody has read in it. Unless that was in an earlier topic of the same name, this leader
    has been replaced without knowing it. Apache Kafka's says all the same that no such epoch is known, and the reader takes that for a log that was cut, and
    begins elsewhere."""
    later = []
    for topic in request.topics:
        for asked in topic.partitions:
            await pace.rest()
            try:
                partition = _find(services, topic.topic, asked)
            except ApiError:
                continue  # told by the answer
            if asked.leader_epoch > partition.leader_epoch:
                later.append(partition)
    refused = await unconfirmed_leaders(later, _CONFIRM_S)
    return {partition for partition in later if partition not in refused}


def _find(services: LogServices, topic: str, asked: OffsetForLeaderPartition) -> Partition:
    partition = services.replicas.leader(topic, asked.partition)
    partition.check_epoch(asked.current_leader_epoch)
    return partition


def _one(
    services: LogServices, topic: str, asked: OffsetForLeaderPartition, confirmed: Container[Partition]
) -> EpochEndOffset:
    try:
        partition = _find(services, topic, asked)
        if asked.leader_epoch > partition.leader_epoch and partition not in confirmed:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = partition.online_log
    except ApiError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    if asked.leader_epoch == partition.leader_epoch:
        epoch, end_offset = asked.leader_epoch, log.log_end_offset
    else:
        epoch, end_offset = log.epochs.end_offset(asked.leader_epoch, log.log_end_offset)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
