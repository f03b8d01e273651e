"""OffsetForLeaderEpoch: the end of a leader epoch, to detect truncation (KIP-320).

* v2: the leader epoch of the client, for fencing. Older versions are not served.

Different from Kafka: if the requested epoch is later than this leader's, some reader has seen a
later leader. This leader then asks its followers whether it was replaced. Kafka responds that the
epoch is unknown, which readers interpret as truncation, and start over elsewhere.
"""

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

# Maximum time to wait for followers to confirm the leader. After it the client retries.
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
        for requested in topic.partitions:
            rows.append(_end_offset(services, topic.topic, requested, confirmed))
            await pace.rest()
    return response


async def _confirmed(
    services: LogServices, request: OffsetForLeaderEpochRequest, pace: Pace
) -> Container[Partition]:
    """Return the partitions requested for a later epoch that this broker still leads.

    Such an epoch may also be that of a deleted topic of the same name.
    """
    later = []
    for topic in request.topics:
        for requested in topic.partitions:
            await pace.rest()
            try:
                partition = _find(services, topic.topic, requested)
            except ApiError:
                continue  # the response reports it
            if requested.leader_epoch > partition.leader_epoch:
                later.append(partition)
    not_confirmed = await unconfirmed_leaders(later, _CONFIRM_S)
    return {partition for partition in later if partition not in not_confirmed}


def _find(services: LogServices, topic: str, requested: OffsetForLeaderPartition) -> Partition:
    partition = services.replicas.leader(topic, requested.partition)
    partition.check_epoch(requested.current_leader_epoch)
    return partition


def _end_offset(
    services: LogServices,
    topic: str,
    requested: OffsetForLeaderPartition,
    confirmed: Container[Partition],
) -> EpochEndOffset:
    try:
        partition = _find(services, topic, requested)
        if requested.leader_epoch > partition.leader_epoch and partition not in confirmed:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = partition.online_log
    except ApiError as error:
        return EpochEndOffset(error_code=error.code, partition=requested.partition)
    if requested.leader_epoch == partition.leader_epoch:
        epoch, end_offset = requested.leader_epoch, log.log_end_offset
    else:
        epoch, end_offset = log.epochs.end_offset(requested.leader_epoch, log.log_end_offset)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)
