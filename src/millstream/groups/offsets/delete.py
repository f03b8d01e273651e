"""OffsetDelete and DeleteGroups: tombstones for offsets, and for groups without members."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.decisions import CoordinatorRecord, Decision, Disarm, Reply, Waiter
from millstream.core.errors import ErrorCode
from millstream.groups.classic.member import session_timer
from millstream.groups.effects import SetClassicGroup
from millstream.groups.offsets.topics import Row, resolve
from millstream.groups.records import offset_tombstone, size_of
from millstream.groups.shard_state import Group, ShardState
from millstream.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millstream.wire.records.layout import HEADER_SIZE


def decide_offset_delete(
    state: ShardState, request: OffsetDeleteRequest, waiter: Waiter[OffsetDeleteResponse]
) -> Decision:
    if not request.group_id:
        return _reject(waiter, ErrorCode.INVALID_GROUP_ID)
    group = state.find(request.group_id)
    error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_offset_delete()
    if group is None or error is not ErrorCode.NONE:
        return _reject(waiter, error)
    records: list[CoordinatorRecord] = []
    topics = []
    for row in resolve(request.topics, state.topics, by_id=False):
        errors = _delete(state, group, row, records)
        topics.append(_topic(row, errors))
    return Decision(tuple(records), (Reply(waiter, OffsetDeleteResponse(topics=topics)),))


def _reject(waiter: Waiter[OffsetDeleteResponse], error: ErrorCode) -> Decision:
    return Decision(effects=(Reply(waiter, OffsetDeleteResponse(error_code=error)),))


def _delete(
    state: ShardState, group: Group, row: Row, records: list[CoordinatorRecord]
) -> Sequence[ErrorCode]:
    """Delete offsets of topics that the group does not subscribe to.

    Partitions without an offset need no tombstone.
    """
    if group.subscribes_to(row.name):
        return [error or ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for error in row.errors]
    for partition, error in zip(row.partitions, row.errors, strict=True):
        key = (group.group_id, row.name, partition.partition_index)
        if error is ErrorCode.NONE and (
            state.offsets.get(*key) is not None or state.offsets.is_open(*key)
        ):
            records.append(offset_tombstone(*key))
    return row.errors


def _topic(row: Row, errors: Sequence[ErrorCode]) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=row.name,
        partitions=[
            OffsetDeleteResponsePartition(
                partition_index=partition.partition_index, error_code=error
            )
            for partition, error in zip(row.partitions, errors, strict=True)
        ],
    )


def decide_delete(
    state: ShardState, request: DeleteGroupsRequest, waiter: Waiter[DeleteGroupsResponse]
) -> Decision:
    """Delete each group with all its offsets, or not at all.

    If a group is listed twice, it is unknown the second time.
    """
    decision = Decision()
    results = []
    deleted: set[str] = set()
    for group_id in request.groups_names:
        group = None if group_id in deleted else state.find(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is not None and error is ErrorCode.NONE:
            removal = remove(state, group)
            if _fits(state, decision.records + removal.records):
                decision += removal
                deleted.add(group_id)
            else:
                error = ErrorCode.UNKNOWN_SERVER_ERROR
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    return decision + Decision(effects=(Reply(waiter, DeleteGroupsResponse(results=results)),))


def remove(state: ShardState, group: Group) -> Decision:
    """Delete everything about a group.

    A member that joins later with an id it got before is rejected as unknown.
    """
    offsets = tuple(state.offsets.tombstones(group.group_id))
    classic = state.classic.get(group.group_id)
    if classic is None:
        return Decision(
            (*offsets, *(group.tombstones() if group.group_id in state.consumer else ()))
        )
    timers = tuple(
        Disarm(session_timer(group.group_id, member_id)) for member_id in sorted(classic.pending)
    )
    return Decision(
        (*offsets, *group.tombstones()), (SetClassicGroup(group.group_id, None), *timers)
    )


def _fits(state: ShardState, records: Sequence[CoordinatorRecord]) -> bool:
    return sum(map(size_of, records)) + HEADER_SIZE <= state.settings.max_message_bytes
