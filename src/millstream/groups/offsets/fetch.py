"""OffsetFetch for a group: the requested partitions, or all that have an offset (topics null, v2+).

An unknown group has no committed offsets: offset -1, no error.

- v7+: a request for stable offsets gets UNSTABLE_OFFSET_COMMIT while a transaction that may change
  them is open.
- v9+: members of consumer groups are checked.
- v10+: topics by id.
- Versions before 8 have a single group and another shape: see ``group_of`` and ``single``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from millstream.core.decisions import Decision, Reply, Waiter
from millstream.core.errors import ErrorCode
from millstream.core.ids import NULL_ID
from millstream.groups.shard_state import GroupContext, ShardState
from millstream.wire.group_records import OffsetCommitValue
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

NO_OFFSET = -1
_TOPIC_IDS = 10
_TOP_LEVEL_ERROR = 2

T = TypeVar("T")
# A request may have hundreds of thousands of partitions: the caller yields to the event loop
# between steps.
Steps = Generator[Any, None, T]


def decide(
    state: ShardState,
    request: OffsetFetchRequestGroup,
    context: GroupContext,
    waiter: Waiter[OffsetFetchResponseGroup],
    require_stable: bool,
) -> Decision:
    group = state.find(request.group_id)
    error = ErrorCode.NONE
    if group is not None:
        error = group.check_offset_fetch(request.member_id, request.member_epoch)
    if error is not ErrorCode.NONE:
        response = OffsetFetchResponseGroup(group_id=request.group_id, error_code=error)
        return Decision(effects=(Reply(waiter, response),))
    by_id = context.version >= _TOPIC_IDS
    fetch = _Fetch(state, request.group_id, require_stable)
    if request.topics is None:
        topics = fetch.everything(by_id)
    else:
        topics = fetch.by_id(request.topics) if by_id else fetch.by_name(request.topics)
    return Decision(
        effects=(Reply(waiter, OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)),)
    )


class _Fetch:
    def __init__(self, state: ShardState, group_id: str, require_stable: bool) -> None:
        self.topics = state.topics
        self.offsets = state.offsets
        self.group_id = group_id
        self.committed = state.offsets.of(group_id)
        self.unstable = require_stable and state.offsets.has_open_transaction(group_id)

    def by_name(
        self, requested: Sequence[OffsetFetchRequestTopics]
    ) -> list[OffsetFetchResponseTopics]:
        return [self._topic(topic.name, NULL_ID, topic.partition_indexes) for topic in requested]

    def by_id(
        self, requested: Sequence[OffsetFetchRequestTopics]
    ) -> list[OffsetFetchResponseTopics]:
        rows = []
        for topic in requested:
            name = self.topics.name_of(topic.topic_id)
            if name is None:
                rows.append(_unknown(topic))
            else:
                rows.append(self._topic(name, topic.topic_id, topic.partition_indexes))
        return rows

    def everything(self, by_id: bool) -> list[OffsetFetchResponseTopics]:
        """Return all committed offsets. By id, topics that have no id any more are left out."""
        rows = []
        for name, partitions in self.committed.items():
            topic_id = self.topics.id_of(name) or NULL_ID
            if not by_id or topic_id != NULL_ID:
                rows.append(self._topic(name, topic_id if by_id else NULL_ID, list(partitions)))
        return rows

    def _topic(
        self, name: str, topic_id: bytes, partitions: Sequence[int]
    ) -> OffsetFetchResponseTopics:
        committed = self.committed.get(name, {})
        current = self.topics.id_of(name) or NULL_ID
        rows = []
        for partition in partitions:
            offset = committed.get(partition)
            if self.unstable and self.offsets.is_open(self.group_id, name, partition):
                rows.append(_none(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            elif offset is None or _of_recreated(offset.value, current):
                rows.append(_none(partition, ErrorCode.NONE))
            else:
                rows.append(_offset(partition, offset.value))
        return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=rows)


def _of_recreated(value: OffsetCommitValue, topic_id: bytes) -> bool:
    """Return whether the offset belongs to a deleted topic that had the same name."""
    return NULL_ID not in (topic_id, value.topic_id) and value.topic_id != topic_id


def _offset(partition: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _none(partition: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, metadata="", error_code=error
    )


def _unknown(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    rows = [_none(partition, ErrorCode.UNKNOWN_TOPIC_ID) for partition in topic.partition_indexes]
    return OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=rows)


def error_response(
    request: OffsetFetchRequestGroup, error: ErrorCode
) -> Steps[OffsetFetchResponseGroup]:
    """Return the error of a group, also for every partition: some clients check only partitions."""
    group = OffsetFetchResponseGroup(group_id=request.group_id, error_code=error)
    for topic in request.topics or ():
        rows: list[OffsetFetchResponsePartitions] = []
        group.topics.append(
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)
        )
        for index in topic.partition_indexes:
            rows.append(_none(index, error))
            yield
        yield
    return group


# ---- single group, v1-7 ----


def group_of(request: OffsetFetchRequest) -> Steps[OffsetFetchRequestGroup]:
    """Convert a request of v1-7 to the form of later versions."""
    if request.topics is None:
        return OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    topics = []
    for topic in request.topics:
        topics.append(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
        )
        yield
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def single(
    group: OffsetFetchResponseGroup, request: OffsetFetchRequestGroup, version: int
) -> Steps[OffsetFetchResponse]:
    """Convert a response to the form of v1-7. In v1 only partitions have errors."""
    if group.error_code and version < _TOP_LEVEL_ERROR:
        group = yield from error_response(request, ErrorCode.of(group.error_code))
    response = OffsetFetchResponse(error_code=group.error_code)
    group.topics.reverse()
    while group.topics:
        # Release topics step by step: freeing all of them at once would take long.
        topic = group.topics.pop()
        rows: list[OffsetFetchResponsePartition] = []
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=rows))
        for row in topic.partitions:
            rows.append(
                OffsetFetchResponsePartition(
                    partition_index=row.partition_index,
                    committed_offset=row.committed_offset,
                    committed_leader_epoch=row.committed_leader_epoch,
                    metadata=row.metadata,
                    error_code=row.error_code,
                )
            )
            yield
        yield
    return response
