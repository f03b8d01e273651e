"""Decoded Fetch requests as the rows of a fetch session (``replication/fetch_session.py``)."""

from __future__ import annotations

from millstream.broker.net.context import RequestContext
from millstream.replication.fetch_session import Key, PartitionFetch
from millstream.wire.messages.fetch import FetchRequest


def replica_id_of(context: RequestContext, request: FetchRequest) -> int:
    """Return the broker id of a follower, or -1 for a consumer."""
    return request.replica_id if context.version < 15 else request.replica_state.replica_id


def rows_of(request: FetchRequest, by_id: bool) -> tuple[list[PartitionFetch], list[Key]]:
    """Return the partitions to read, and those to remove from the session."""
    rows = {}
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            row = PartitionFetch(
                name,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                partition.high_watermark,
            )
            rows[row.key] = row
    forgotten: list[Key] = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return list(rows.values()), forgotten
