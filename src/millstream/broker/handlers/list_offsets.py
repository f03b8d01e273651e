"""ListOffsets: latest, earliest, by timestamp, and the other marks.

v0 answers the starts of segments, the newest first, as many as asked for; v1 and later one offset with its timestamp. From v2 the isolation level bounds
"latest" by the last stable offset. Nothing is tiered here: the tiered marks (v9, v11) have no offset. Only consumers are bound by what is committed;
a tool that looks at replicas (replica id -2) is answered by followers, too.
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
# The version from which each mark may be asked for.
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

Found = tuple[int, int, int]  # timestamp, offset, leader epoch
_NONE: Found = (-1, -1, -1)


def handle(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse] | Awaitable[ListOffsetsResponse]:
    if context.version == 0:
        return _starts_of_segments(services, context, request)
    marks = {one.timestamp for topic in request.topics for one in topic.partitions}
    if marks <= {LATEST, EARLIEST}:
        return _known_marks(services, context, request)
    return _search(services, context, request)


def _known_marks(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse]:
    """Without a look into the logs."""
    rows = _Rows(context)
    for topic in request.topics:
        rows.begin(topic.name)
        for one in topic.partitions:
            rows.add(_one(services, request, topic.name, one))
            yield
    return ListOffsetsResponse(topics=rows.topics)


class _Rows:
    """The answer as it grows. A partition that is asked for twice gets INVALID_REQUEST, once."""

    def __init__(self, context: RequestContext) -> None:
        self.topics: list[ListOffsetsTopicResponse] = []
        self._knows_not_available = context.version >= _KNOWS_NOT_AVAILABLE
        # By topic and partition: its row, and where that is in the answer.
        self._places: dict[tuple[str, int], tuple[ListOffsetsTopicResponse, int]] = {}

    def begin(self, topic: str) -> None:
        self.topics.append(ListOffsetsTopicResponse(name=topic))

    def add(self, row: ListOffsetsPartitionResponse) -> None:
        topic = self.topics[-1]
        if row.error_code == ErrorCode.OFFSET_NOT_AVAILABLE and not self._knows_not_available:
            row.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        key = topic.name, row.partition_index
        if key not in self._places:
            self._places[key] = topic, len(topic.partitions)
            topic.partitions.append(row)
            return
        refused = ListOffsetsPartitionResponse(
            partition_index=row.partition_index,
            error_code=ErrorCode.INVALID_REQUEST,
            timestamp=-1,
            offset=-1,
        )
        earlier, index = self._places[key]
        if earlier is topic:
            topic.partitions[index] = refused
        else:
            self._places[key] = topic, len(topic.partitions)
            topic.partitions.append(refused)


def _one(
    services: LogServices,
    request: ListOffsetsRequest,
    topic: str,
    one: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    try:
        partition, log = _asked(services, request, topic, one)
        return _answer(one, _mark(partition, log, request, one.timestamp))
    except ApiError as error:
        return _failure(one, error)


def _asked(
    services: LogServices, request: ListOffsetsRequest, topic: str, one: ListOffsetsPartition
) -> tuple[Partition, PartitionLog]:
    any_replica = request.replica_id == ANY_REPLICA
    find = services.replicas.replica if any_replica else services.replicas.leader
    partition = find(topic, one.partition_index)
    partition.check_epoch(one.current_leader_epoch)
    if request.isolation_level not in (0, READ_COMMITTED):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return partition, partition.online_log


def _mark(partition: Partition, log: PartitionLog, request: ListOffsetsRequest, mark: int) -> Found:
    """Marks that are known without looking into the log."""
    if mark == LATEST:
        if request.replica_id == CONSUMER:
            _check_available(partition, log)
        return -1, _end(log, request), partition.leader_epoch
    if mark in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, _epoch_at(partition, log, log.log_start_offset)
    return _NONE


def _end(log: PartitionLog, request: ListOffsetsRequest) -> int:
    """Up to where whoever asks may see the log."""
    if request.replica_id != CONSUMER:
        return log.log_end_offset
    return log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark


def _check_available(partition: Partition, log: PartitionLog) -> None:
    """KIP-207: a new leader may not know yet how far its predecessor had committed. Until it has all of that itself, its end would
    look like a step back."""
    if partition.followers is not None and partition.followers.epoch_start > log.high_watermark:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _epoch_at(partition: Partition, log: PartitionLog, offset: int) -> int:
    epoch = log.epochs.epoch_of(offset)
    return epoch if epoch >= 0 else partition.leader_epoch


async def _search(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    pace, rows = Pace(), _Rows(context)
    for topic in request.topics:
        rows.begin(topic.name)
        for one in topic.partitions:
            rows.add(await _one_later(services, context, request, topic.name, one))
            await pace.rest()
    return ListOffsetsResponse(topics=rows.topics)


async def _one_later(
    services: LogServices,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    one: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    """By timestamp: index and log are read in a thread, for they may be cold."""
    try:
        partition, log = _asked(services, request, topic, one)
        if one.timestamp < 0 and _SINCE.get(one.timestamp, 99) > context.version:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if one.timestamp < 0 and one.timestamp != MAX_TIMESTAMP:
            return _answer(one, _mark(partition, log, request, one.timestamp))
        search = log.timestamp_search(None if one.timestamp == MAX_TIMESTAMP else one.timestamp)
        epoch = partition.leader_epoch
        hit = await asyncio.get_running_loop().run_in_executor(None, search)
        still, _log = _asked(services, request, topic, one)
        if still is not partition or still.leader_epoch != epoch:
            # What it found nothing in may have been another history.
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if hit is None or hit[1] >= _end(log, request):
            if request.replica_id == CONSUMER:
                _check_available(partition, log)
            return _answer(one, _NONE)
        return _answer(one, (hit[0], hit[1], _epoch_at(partition, log, hit[1])))
    except ApiError as error:
        return _failure(one, error)


def _answer(one: ListOffsetsPartition, found: Found) -> ListOffsetsPartitionResponse:
    timestamp, offset, epoch = found
    return ListOffsetsPartitionResponse(
        partition_index=one.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


async def _starts_of_segments(
    services: LogServices, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """v0: the end of the log and the starts of its segments, from the last one that is older than the timestamp."""
    pace, rows = Pace(), _Rows(context)
    loop = asyncio.get_running_loop()
    for topic in request.topics:
        rows.begin(topic.name)
        for one in topic.partitions:
            try:
                _partition, log = _asked(services, request, topic.name, one)
                # The age of a segment is that of its file: ask the disk in a thread.
                found = await loop.run_in_executor(
                    None, _older_starts, log, one.timestamp, _end(log, request), services.clock.now_ms()
                )
                found = found[: max(one.max_num_offsets, 0)]
                rows.add(
                    ListOffsetsPartitionResponse(partition_index=one.partition_index, old_style_offsets=found)
                )
            except ApiError as error:
                rows.add(_failure(one, error))
            await pace.rest()
    return ListOffsetsResponse(topics=rows.topics)


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


def _failure(one: ListOffsetsPartition, error: ApiError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=one.partition_index, error_code=error.code, timestamp=-1, offset=-1
    )
