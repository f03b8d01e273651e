"""Names and requests that the tests of offsets share."""

from __future__ import annotations

from millstream.core.decisions import CoordinatorRecord
from millstream.core.errors import ErrorCode
from millstream.groups.settings import GroupSettings
from millstream.wire.group_records import OffsetCommitKey, OffsetCommitValue
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    TinyHost,
    fetch,
)

NOW = 1_000

CHECK_MS = GroupSettings().offsets_retention_check_interval_ms

ORDERS_0 = ("orders", 0)


def offset_record(partition: int, offset: int, **changes: object) -> CoordinatorRecord:
    value = {"offset": offset, "commit_timestamp": NOW, "topic_id": ORDERS_ID, **changes}
    return CoordinatorRecord(
        OffsetCommitKey(group=GROUP, topic="orders", partition=partition),
        OffsetCommitValue(**value),  # type: ignore[arg-type]
    )


def offsets_of(host: TinyHost, *partitions: tuple[str, int], stable: bool = False) -> list[int]:
    """Offsets, or minus the error code."""
    answer = host.ask("offset_fetch", fetch(*partitions), 8, require_stable=stable)
    rows = [row for topic in answer.topics for row in topic.partitions]
    return [-row.error_code if row.error_code else row.committed_offset for row in rows]


def delete_offsets(host: TinyHost, *partitions: tuple[str, int]) -> list[int]:
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
        )
        for name, index in partitions
    ]
    answer = host.ask("offset_delete", OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    assert answer.error_code == ErrorCode.NONE
    return [row.error_code for topic in answer.topics for row in topic.partitions]
