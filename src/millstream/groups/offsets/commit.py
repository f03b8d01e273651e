"""OffsetCommit and TxnOffsetCommit: checks of topics, members and metadata, and the records.

Both follow the same rules; offsets of TxnOffsetCommit take effect when the transaction commits.

- OffsetCommit: v2-4 may carry a retention time, v7+ an instance id. v9+ have an error for an
  unknown group. v10+ have topic ids.
- TxnOffsetCommit: v3+ carry the member (KIP-447). v6+ have topic ids and an error for an unknown
  group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.core.decisions import (
    Arm,
    CoordinatorRecord,
    Decision,
    Reply,
    TransactionalAppend,
    Waiter,
)
from millstream.core.errors import ErrorCode
from millstream.core.ids import NULL_ID
from millstream.groups.classic.member import session_timer
from millstream.groups.classic.states import COMMIT_KEEPS_SESSION
from millstream.groups.offsets.topics import Row, resolve
from millstream.groups.records import NO_TIMESTAMP, size_of
from millstream.groups.shard_state import GroupContext, ShardState
from millstream.groups.topics_view import Topics
from millstream.wire.group_records import OffsetCommitKey, OffsetCommitValue
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from millstream.wire.records.layout import HEADER_SIZE

_TOPIC_IDS = 10
_KNOWS_UNKNOWN_GROUP = 9
_TXN_TOPIC_IDS = 6
_TXN_KNOWS_UNKNOWN_GROUP = 6
_TXN_KNOWS_STALE_EPOCH = 6
_NO_RETENTION_TIME = -1
# Maximum bytes of a commit's record, without its group id and metadata.
_RECORD_OVERHEAD = 1024


def decide(
    state: ShardState,
    request: OffsetCommitRequest,
    context: GroupContext,
    waiter: Waiter[OffsetCommitResponse],
    now_ms: int,
) -> Decision:
    rows = resolve(request.topics, state.topics, by_id=context.version >= _TOPIC_IDS)
    existing = [row for row in rows if row.exists]
    if not existing:
        return Decision(effects=(Reply(waiter, _response(rows, _as_resolved(rows))),))
    error = _check(state, request, context, existing)
    if error is not ErrorCode.NONE:
        return Decision(effects=(Reply(waiter, _response(rows, _all_fail(rows, error))),))
    retention_ms = request.retention_time_ms
    expires = NO_TIMESTAMP if retention_ms == _NO_RETENTION_TIME else now_ms + retention_ms
    records, errors = _records(state, request.group_id, rows, now_ms, expires)
    if _too_large(state, records):
        rejection = _all_fail(rows, ErrorCode.UNKNOWN_SERVER_ERROR)
        return Decision(effects=(Reply(waiter, _response(rows, rejection)),))
    return Decision(
        tuple(records), (*_session(state, request, now_ms), Reply(waiter, _response(rows, errors)))
    )


def rejected_transactional(
    request: TxnOffsetCommitRequest, version: int, topics: Topics, code: ErrorCode = ErrorCode.NONE
) -> TxnOffsetCommitResponse:
    """Return the response if the commit is rejected before it reaches a group.

    Partitions that do not exist still get their own error.
    """
    rows = resolve(request.topics, topics, by_id=version >= _TXN_TOPIC_IDS)
    return _txn_response(rows, _all_fail(rows, code))


def any_partition_exists(request: TxnOffsetCommitRequest, version: int, topics: Topics) -> bool:
    """Return whether any partition of the request exists.

    If none does, no group needs to decide.
    """
    return any(
        row.exists for row in resolve(request.topics, topics, by_id=version >= _TXN_TOPIC_IDS)
    )


def decide_transactional(
    state: ShardState,
    request: TxnOffsetCommitRequest,
    context: GroupContext,
    waiter: Waiter[TxnOffsetCommitResponse],
    now_ms: int,
) -> Decision:
    rows = resolve(request.topics, state.topics, by_id=context.version >= _TXN_TOPIC_IDS)
    existing = [row for row in rows if row.exists]
    if not existing:
        return Decision(effects=(Reply(waiter, _txn_response(rows, _as_resolved(rows))),))
    error = _check_transactional(state, request, context, existing)
    if error is not ErrorCode.NONE:
        return Decision(effects=(Reply(waiter, _txn_response(rows, _all_fail(rows, error))),))
    records, errors = _records(state, request.group_id, rows, now_ms, NO_TIMESTAMP)
    if _too_large(state, records):
        rejection = _all_fail(rows, ErrorCode.UNKNOWN_SERVER_ERROR)
        return Decision(effects=(Reply(waiter, _txn_response(rows, rejection)),))
    reply = Reply(waiter, _txn_response(rows, errors))
    if not records:
        return Decision(effects=(reply,))
    transaction = TransactionalAppend(request.producer_id, request.producer_epoch)
    return Decision(tuple(records), (reply,), transactional=transaction)


# ---- checks ----


def _check(
    state: ShardState, request: OffsetCommitRequest, context: GroupContext, rows: Sequence[Row]
) -> ErrorCode:
    group = state.find(request.group_id)
    epoch = request.generation_id_or_member_epoch
    if group is None:
        if epoch < 0:
            # The first commit of a simple group.
            return ErrorCode.NONE
        has_error = context.version >= _KNOWS_UNKNOWN_GROUP
        return ErrorCode.GROUP_ID_NOT_FOUND if has_error else ErrorCode.ILLEGAL_GENERATION
    return group.check_offset_commit(
        request.member_id,
        request.group_instance_id,
        epoch,
        rows,
        transactional=False,
        version=context.version,
    )


def _check_transactional(
    state: ShardState, request: TxnOffsetCommitRequest, context: GroupContext, rows: Sequence[Row]
) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = state.find(request.group_id)
    epoch = request.generation_id_or_member_epoch
    if group is None:
        if epoch < 0:
            return ErrorCode.NONE
        has_error = context.version >= _TXN_KNOWS_UNKNOWN_GROUP
        return ErrorCode.GROUP_ID_NOT_FOUND if has_error else ErrorCode.ILLEGAL_GENERATION
    error = group.check_offset_commit(
        request.member_id,
        request.group_instance_id,
        epoch,
        rows,
        transactional=True,
        version=context.version,
    )
    if error is ErrorCode.STALE_MEMBER_EPOCH and context.version < _TXN_KNOWS_STALE_EPOCH:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _session(state: ShardState, request: OffsetCommitRequest, now_ms: int) -> tuple[Arm, ...]:
    """Extend the session of a classic member: a commit shows that it is alive."""
    group = state.classic.get(request.group_id)
    if group is None or group.state not in COMMIT_KEEPS_SESSION:
        return ()
    member = group.members[request.member_id]
    return (
        Arm(session_timer(group.group_id, member.member_id), now_ms + member.session_timeout_ms),
    )


# ---- records ----


def _records(
    state: ShardState, group_id: str, rows: Sequence[Row], now_ms: int, expires: int
) -> tuple[list[CoordinatorRecord], list[tuple[ErrorCode, ...]]]:
    max_metadata = state.settings.offset_metadata_max_bytes
    records: list[CoordinatorRecord] = []
    errors: list[tuple[ErrorCode, ...]] = []
    for row in rows:
        row_errors = []
        for partition, error in zip(row.partitions, row.errors, strict=True):
            if error is ErrorCode.NONE:
                if len(partition.committed_metadata or "") > max_metadata:
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    key = OffsetCommitKey(
                        group=group_id, topic=row.name, partition=partition.partition_index
                    )
                    records.append(
                        CoordinatorRecord(key, _value(partition, row.topic_id, now_ms, expires))
                    )
            row_errors.append(error)
        errors.append(tuple(row_errors))
    return records, errors


def _value(partition: Any, topic_id: bytes, now_ms: int, expires: int) -> OffsetCommitValue:
    """Return the value of the record.

    The version of the value that has an expiry has no leader epoch and no topic id.
    """
    plain = expires == NO_TIMESTAMP
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch if plain else -1,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expires,
        topic_id=topic_id if plain else NULL_ID,
    )


def _too_large(state: ShardState, records: Sequence[CoordinatorRecord]) -> bool:
    """Return whether the records exceed a batch.

    Exact sizes are computed only if they can matter.
    """
    if not records:
        return False
    max_record = (
        4 * (state.settings.offset_metadata_max_bytes + len(records[0].key.group))
        + _RECORD_OVERHEAD
    )
    if len(records) * max_record <= state.settings.max_message_bytes:
        return False
    return sum(map(size_of, records)) + HEADER_SIZE > state.settings.max_message_bytes


# ---- responses ----

_Errors = Sequence[tuple[ErrorCode, ...]]


def _as_resolved(rows: Sequence[Row]) -> _Errors:
    return [row.errors for row in rows]


def _all_fail(rows: Sequence[Row], error: ErrorCode) -> _Errors:
    """Return the group's error for every partition that exists."""
    return [tuple(error if own is ErrorCode.NONE else own for own in row.errors) for row in rows]


def _response(rows: Sequence[Row], errors: _Errors) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=row.name,
                topic_id=row.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition, error in zip(row.partitions, row_errors, strict=True)
                ],
            )
            for row, row_errors in zip(rows, errors, strict=True)
        ]
    )


def _txn_response(rows: Sequence[Row], errors: _Errors) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=row.name,
                topic_id=row.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition, error in zip(row.partitions, row_errors, strict=True)
                ],
            )
            for row, row_errors in zip(rows, errors, strict=True)
        ]
    )
