"""Reads single partitions for a Fetch request, within the rights of its reader.

Consumers read up to the high watermark, or up to the last stable offset with read_committed.
Followers read to the end of the log. From v11 on a consumer may read from any replica (KIP-392).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.broker.fetch.rows import replica_id_of
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import ResponsePart
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.partition_log import PartitionLog
from millstream.replication.fetch_session import PartitionFetch
from millstream.replication.read_replica import preferred_replica
from millstream.wire.fetch_response import WITH_NODES, PartitionData
from millstream.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from millstream.broker.services import FetchServices

READ_COMMITTED = 1
# The first versions that may read from any replica, that know zstd, and batches of format 2.
_ANY_REPLICA = 11
_KNOWS_ZSTD = 10
KNOWS_BATCHES = 4
# Maximum size of a response that is converted for a client of before format 2. The client fetches
# the rest with its next requests.
_CONVERTED_BYTES = 1024 * 1024
# Errors whose response names the current leader (KIP-951).
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_UNKNOWN_OFFSETS: tuple[int, int, int] = (-1, -1, -1)


class PartitionReader:
    """Reads partitions with the options of one request. It keeps no results."""

    __slots__ = (
        "_any_replica",
        "_rack",
        "_racks",
        "_read_committed",
        "_services",
        "_version",
        "end_offsets",
        "max_bytes",
        "replica_id",
    )

    def __init__(
        self, services: FetchServices, context: RequestContext, request: FetchRequest
    ) -> None:
        version = context.version
        self._services = services
        self._version = version
        self._read_committed = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, services.fetch_max_bytes)
        if version < KNOWS_BATCHES:
            self.max_bytes = min(self.max_bytes, _CONVERTED_BYTES)
        # -1 for a consumer.
        self.replica_id = replica_id_of(context, request)
        # KIP-392: consumers may read from any replica, and may be sent to one in their rack.
        self._any_replica = self.replica_id < 0 and version >= _ANY_REPLICA
        self._rack = request.rack_id if services.rack_aware and self._any_replica else ""
        self._racks = services.nodes.racks() if self._rack else {}
        # Where each read ended. Only kept for clients of before format 2.
        self.end_offsets: dict[tuple[str | bytes, int], int] = {}

    def find(self, row: PartitionFetch) -> Partition:
        """Return the replica to read from; raise ApiError if this broker does not have it."""
        replicas, topic = self._services.replicas, row.topic
        name = replicas.name_of(topic) if isinstance(topic, bytes) else topic
        find = replicas.replica if self._any_replica else replicas.leader
        return find(name, row.partition)

    def read(
        self, row: PartitionFetch, taken: int, may_block: bool = False
    ) -> PartitionData[ResponsePart]:
        """Read a partition; errors are part of the result.

        ``taken`` is the number of bytes that the response has already. Raise ColdRead if the read
        would wait for the disk, unless it ``may_block``.
        """
        try:
            return self._read(row, taken, may_block)
        except ApiError as error:
            return self._failure(row, error)

    def _failure(self, row: PartitionFetch, error: ApiError) -> PartitionData[ResponsePart]:
        leader = None
        if self._version >= WITH_NODES and error.code in _LED_ELSEWHERE:
            replicas, topic = self._services.replicas, row.topic
            name = replicas.name_of(topic) if isinstance(topic, bytes) else topic
            leader = replicas.current_leader(name, row.partition)
        return PartitionData(
            row.partition, error.code, *_UNKNOWN_OFFSETS, None, 0, current_leader=leader
        )

    def _read(
        self, row: PartitionFetch, taken: int, may_block: bool
    ) -> PartitionData[ResponsePart]:
        partition = self.find(row)
        partition.check_epoch(row.current_leader_epoch)
        log = partition.online_log
        if self.replica_id >= 0:
            return self._read_for_follower(partition, log, row, taken, may_block)
        if self._rack:
            nearest = self._preferred_replica(partition, row)
            if nearest is not None:
                offsets = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
                return PartitionData(
                    row.partition, 0, *offsets, None, 0, preferred_read_replica=nearest
                )
        diverging = diverging_epoch(log, row)
        upto = log.last_stable_offset if self._read_committed else log.high_watermark
        offsets = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        if diverging is not None or row.fetch_offset == upto:
            aborted: Sequence[tuple[int, int]] | None = [] if self._read_committed else None
            return PartitionData(row.partition, 0, *offsets, None, 0, aborted, diverging)
        if self._version < _KNOWS_ZSTD and log.config.compression_type == "zstd":
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        result = log.read(
            row.fetch_offset,
            max(min(row.max_bytes, self.max_bytes - taken), 0),
            upto=upto,
            # KIP-74: the first batch is complete even if it exceeds the limit, so that it does not
            # block its reader. Kafka sends v0-v2 clients a truncated message instead, which most of
            # them never get past.
            at_least_one=taken == 0,
            may_block=may_block,
        )
        if self._version < KNOWS_BATCHES:
            self.end_offsets[row.key] = result.end_offset
        aborted = None
        if self._read_committed:
            aborted = (
                log.aborted_transactions(row.fetch_offset, result.end_offset) if result.size else []
            )
        return PartitionData(row.partition, 0, *offsets, result.slice, result.size, aborted)

    def _preferred_replica(self, partition: Partition, row: PartitionFetch) -> int | None:
        if partition.followers is None:
            return None
        node_id = self._services.node_id
        return preferred_replica(
            partition.followers, node_id, self._rack, self._racks, row.fetch_offset
        )

    def _read_for_follower(
        self,
        partition: Partition,
        log: PartitionLog,
        row: PartitionFetch,
        taken: int,
        may_block: bool,
    ) -> PartitionData[ResponsePart]:
        """Read to the end of the log.

        The response has this log's offsets even if the follower's offset is out of range.
        """
        if partition.followers is None or self.replica_id not in partition.followers.followers:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        offsets = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        try:
            # Before the throttle: a throttled response still has the high watermark, which would
            # make the follower consider its own diverging tail committed.
            diverging = diverging_epoch(log, row)
            if diverging is not None:
                return PartitionData(row.partition, 0, *offsets, None, 0, None, diverging)
            if self.is_throttled(partition) and self._services.leader_throttle.exceeded:
                return PartitionData(row.partition, 0, *offsets, None, 0, None)
            room = max(min(row.max_bytes, self.max_bytes - taken), 0)
            first = taken == 0
            result = log.read(
                row.fetch_offset,
                room,
                upto=log.log_end_offset,
                at_least_one=first,
                may_block=may_block,
            )
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return PartitionData(row.partition, error.code, *offsets, None, 0)
        return PartitionData(row.partition, 0, *offsets, result.slice, result.size, None)

    def is_throttled(self, partition: Partition) -> bool:
        """Return whether the read counts as reassignment traffic: in-sync replicas never do."""
        throttle = self._services.leader_throttle
        return (
            throttle.active
            and self.replica_id not in partition.isr
            and throttle.concerns(partition.tp)
        )


def diverging_epoch(log: PartitionLog, row: PartitionFetch) -> tuple[int, int] | None:
    """Return the reader's last epoch and its end in this log, if that is before the reader's
    position (KIP-595)."""
    if row.last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.epochs.end_offset(row.last_fetched_epoch, log.log_end_offset)
    if epoch < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < row.last_fetched_epoch or end_offset < row.fetch_offset:
        return epoch, end_offset
    return None
