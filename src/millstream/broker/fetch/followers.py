"""The fetches of followers: their progress, their idle partitions, and their throttle."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.broker.fetch.partition_reader import PartitionReader, diverging_epoch
from millstream.broker.net.responses import ResponsePart
from millstream.cluster.replicas.isr import IsrManager
from millstream.cluster.replicas.throttles import Throttle
from millstream.core.errors import ApiError
from millstream.replication.fetch_session import FetchSession, PartitionFetch
from millstream.wire.fetch_response import PartitionData
from millstream.wire.messages.fetch import FetchRequest

# A partition of a request, and its part of the response.
Row = tuple[PartitionFetch, PartitionData[ResponsePart]]


def broker_epoch_of(request: FetchRequest, version: int) -> int:
    return request.replica_state.replica_epoch if version >= 15 else -1


def record_progress(
    reader: PartitionReader, isr: IsrManager, rows: Iterable[PartitionFetch], broker_epoch: int
) -> None:
    """Record that a follower has everything before the offsets it fetches.

    Called once for each request, however often the request reads.
    """
    for row in rows:
        try:
            partition = reader.find(row)
            partition.check_epoch(row.current_leader_epoch)
            if diverging_epoch(partition.online_log, row) is not None:
                continue  # the follower's records are not those of this log
            proposal = partition.on_follower_fetch(
                reader.replica_id, row.fetch_offset, row.log_start_offset, broker_epoch=broker_epoch
            )
        except ApiError:
            continue  # the read reports it
        if proposal is not None:
            isr.propose(partition, proposal)


def is_behind(row: PartitionFetch, data: PartitionData[ResponsePart]) -> bool:
    """Return whether a follower has a stale high watermark or log start (KIP-1166).

    A response without records lets it make progress then. A DeleteRecords request may wait for the
    log start.
    """
    if min(data.high_watermark, row.fetch_offset) > row.known_high_watermark:
        return True
    sent = row.sent_log_start_offset == data.log_start_offset
    return not sent and data.log_start_offset > row.log_start_offset >= 0


def set_idle(
    reader: PartitionReader,
    session: FetchSession | None,
    row: PartitionFetch,
    data: PartitionData[ResponsePart],
) -> None:
    """Stop reading a partition until it changes, if its follower is in the ISR and has everything.

    With thousands of partitions, most are idle most of the time.
    """
    if data.size or data.error_code or session is None or is_behind(row, data):
        return
    try:
        partition = reader.find(row)
    except ApiError:
        return
    log, progress = partition.log, partition.followers
    if log is None or progress is None or progress.proposal is not None:
        return
    follower = progress.followers.get(reader.replica_id)
    has_all = log.log_end_offset == row.fetch_offset
    is_current = (log.high_watermark, log.log_start_offset) == (
        data.high_watermark,
        data.log_start_offset,
    )
    if follower is not None and reader.replica_id in partition.isr and has_all and is_current:
        partition.waiters.watch(session.wake, row)
        session.set_idle(row, partition.waiters, follower)


def count_throttled(reader: PartitionReader, throttle: Throttle, rows: Iterable[Row]) -> None:
    """Count the bytes of reassignment traffic."""
    for row, data in rows:
        if data.size:
            try:
                if reader.is_throttled(reader.find(row)):
                    throttle.record(data.size)
            except ApiError:
                pass  # the partition was deleted after the read
