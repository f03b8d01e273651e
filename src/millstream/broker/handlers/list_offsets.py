"""ListOffsets: the latest, earliest or another special offset, or the first since a timestamp.

* v0 returns a list: segment starts and the log end, newest first, as many as requested. From v1 on
  the response is one offset with its timestamp.
* v2: the isolation level. With read_committed, "latest" is the last stable offset.
* v4: the leader epoch of the client, for fencing (KIP-320).
* v5: OFFSET_NOT_AVAILABLE from a new leader (KIP-207). Older clients get LEADER_NOT_AVAILABLE.
* v7: the offset of the maximum timestamp (KIP-734).
* v8: the earliest local offset, which is the log start here.
* v9, v11: the latest tiered offset and the earliest pending upload. Nothing is tiered here, so they
  have no offset, and the timeout of v10 for remote reads is ignored.

Consumers (replica id -1) see committed offsets only. Debugging tools (replica id -2) also get
responses from followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.partition_log import PartitionLog
from millstream.ports.turns import Pace, Steps
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import LogServices

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
# The first version of each special timestamp.
_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED = 1
CONSUMER, ANY_REPLICA = -1, -2
_KNOWS_NOT_AVAILABLE = 5

# Timestamp, offset, leader epoch.
FoundOffset = tuple[int, int, int]
_NONE: FoundOffset = (-1, -1, -1)


def handle(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse] | Awaitable[ListOffsetsResponse]:
    if context.version == 0:
        return _segment_starts(services, context, request)
    timestamps = {row.timestamp for topic in request.topics for row in topic.partitions}
    if timestamps <= {LATEST, EARLIEST}:
        return _known_offsets(services, context, request)
    return _search(services, context, request)


def _known_offsets(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse]:
    """Respond without reading the logs."""
    results = _Results(context)
    for topic in request.topics:
        results.begin(topic.name)
        for row in topic.partitions:
            results.add(_look_up(services, request, topic.name, row))
            yield
    return ListOffsetsResponse(topics=results.topics)


class _Results:
    """Collects the response. A partition that is requested twice gets one INVALID_REQUEST."""

    def __init__(self, context: RequestContext) -> None:
        self.topics: list[ListOffsetsTopicResponse] = []
        self._knows_not_available = context.version >= _KNOWS_NOT_AVAILABLE
        # The position of each topic and partition in the response.
        self._positions: dict[tuple[str, int], tuple[ListOffsetsTopicResponse, int]] = {}

    def begin(self, topic: str) -> None:
        self.topics.append(ListOffsetsTopicResponse(name=topic))

    def add(self, row: ListOffsetsPartitionResponse) -> None:
        topic = self.topics[-1]
        if row.error_code == ErrorCode.OFFSET_NOT_AVAILABLE and not self._knows_not_available:
            row.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        key = topic.name, row.partition_index
        if key not in self._positions:
            self._positions[key] = topic, len(topic.partitions)
            topic.partitions.append(row)
            return
        rejected = ListOffsetsPartitionResponse(
            partition_index=row.partition_index,
            error_code=ErrorCode.INVALID_REQUEST,
            timestamp=-1,
            offset=-1,
        )
        earlier, index = self._positions[key]
        if earlier is topic:
            topic.partitions[index] = rejected
        else:
            self._positions[key] = topic, len(topic.partitions)
            topic.partitions.append(rejected)


def _look_up(
    services: LogServices,
    request: ListOffsetsRequest,
    topic: str,
    row: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    try:
        partition, log = _find(services, request, topic, row)
        return _result(row, _special_offset(partition, log, request, row.timestamp))
    except ApiError as error:
        return _failure(row, error)


def _find(
    services: LogServices, request: ListOffsetsRequest, topic: str, row: ListOffsetsPartition
) -> tuple[Partition, PartitionLog]:
    any_replica = request.replica_id == ANY_REPLICA
    find = services.replicas.replica if any_replica else services.replicas.leader
    partition = find(topic, row.partition_index)
    partition.check_epoch(row.current_leader_epoch)
    if request.isolation_level not in (0, READ_COMMITTED):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return partition, partition.online_log


def _special_offset(
    partition: Partition, log: PartitionLog, request: ListOffsetsRequest, timestamp: int
) -> FoundOffset:
    """Return an offset that is known without reading the log."""
    if timestamp == LATEST:
        if request.replica_id == CONSUMER:
            _check_available(partition, log)
        return -1, _visible_end(log, request), partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, _epoch_at(partition, log, log.log_start_offset)
    return _NONE


def _visible_end(log: PartitionLog, request: ListOffsetsRequest) -> int:
    """Return the end of the log as the client may see it."""
    if request.replica_id != CONSUMER:
        return log.log_end_offset
    return (
        log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
    )


def _check_available(partition: Partition, log: PartitionLog) -> None:
    """Raise if a new leader may not know yet how far its predecessor had committed (KIP-207).

    Until its own high watermark has reached the start of its epoch, "latest" could go back.
    """
    if partition.followers is not None and partition.followers.epoch_start > log.high_watermark:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _epoch_at(partition: Partition, log: PartitionLog, offset: int) -> int:
    epoch = log.epochs.epoch_of(offset)
    return epoch if epoch >= 0 else partition.leader_epoch


async def _search(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    pace, results = Pace(), _Results(context)
    for topic in request.topics:
        results.begin(topic.name)
        for row in topic.partitions:
            results.add(await _search_partition(services, context, request, topic.name, row))
            await pace.rest()
    return ListOffsetsResponse(topics=results.topics)


async def _search_partition(
    services: LogServices,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    row: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    """Search by timestamp in a thread, because index and log may not be in memory."""
    try:
        partition, log = _find(services, request, topic, row)
        if row.timestamp < 0 and _SINCE.get(row.timestamp, 99) > context.version:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if row.timestamp < 0 and row.timestamp != MAX_TIMESTAMP:
            return _result(row, _special_offset(partition, log, request, row.timestamp))
        search = log.timestamp_search(None if row.timestamp == MAX_TIMESTAMP else row.timestamp)
        epoch = partition.leader_epoch
        hit = await asyncio.get_running_loop().run_in_executor(None, search)
        current, _log = _find(services, request, topic, row)
        if current is not partition or current.leader_epoch != epoch:
            # The search may have read records of another history.
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if hit is None or hit[1] >= _visible_end(log, request):
            if request.replica_id == CONSUMER:
                _check_available(partition, log)
            return _result(row, _NONE)
        return _result(row, (hit[0], hit[1], _epoch_at(partition, log, hit[1])))
    except ApiError as error:
        return _failure(row, error)


def _result(row: ListOffsetsPartition, found: FoundOffset) -> ListOffsetsPartitionResponse:
    timestamp, offset, epoch = found
    return ListOffsetsPartitionResponse(
        partition_index=row.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


async def _segment_starts(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Respond to v0: the log end and the segment starts that are older than the timestamp."""
    pace, results = Pace(), _Results(context)
    loop = asyncio.get_running_loop()
    for topic in request.topics:
        results.begin(topic.name)
        for row in topic.partitions:
            try:
                _partition, log = _find(services, request, topic.name, row)
                # The age of a segment is that of its file, which is read in a thread.
                starts = await loop.run_in_executor(
                    None,
                    _older_starts,
                    log,
                    row.timestamp,
                    _visible_end(log, request),
                    services.clock.now_ms(),
                )
                starts = starts[: max(row.max_num_offsets, 0)]
                results.add(
                    ListOffsetsPartitionResponse(
                        partition_index=row.partition_index, old_style_offsets=starts
                    )
                )
            except ApiError as error:
                results.add(_failure(row, error))
            await pace.rest()
    return ListOffsetsResponse(topics=results.topics)


def _older_starts(log: PartitionLog, timestamp: int, end: int, now_ms: int) -> list[int]:
    first, segments = log.log_start_offset, list(log.segments)
    if timestamp == EARLIEST:
        return [first]
    starts = [
        max(segment.base_offset, first)
        for segment in segments
        if timestamp == LATEST or segment.log_file.modified_ms() <= timestamp
    ]
    if timestamp == LATEST or now_ms <= timestamp:
        starts.append(end)
    return sorted({start for start in starts if start <= end}, reverse=True)


def _failure(row: ListOffsetsPartition, error: ApiError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=row.partition_index, error_code=error.code, timestamp=-1, offset=-1
    )
