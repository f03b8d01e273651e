"""SyncGroup for a classic group. The leader's sync carries the assignment.

The assignment is written before any member gets it. v3+: instance id. v5+: the request carries the
protocol that the member expects.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.core.decisions import Decision, Reply, Waiter
from millstream.core.errors import ErrorCode
from millstream.groups.classic import answers
from millstream.groups.classic.draft import Draft
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.states import State
from millstream.groups.records import size_of
from millstream.groups.settings import GroupSettings
from millstream.groups.shard_state import ShardState
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.records.layout import HEADER_SIZE


def decide(
    state: ShardState, request: SyncGroupRequest, waiter: Waiter[SyncGroupResponse], now_ms: int
) -> Decision:
    """Decide about a sync of a group that is classic, simple or unknown."""
    group = state.classic.get(request.group_id)
    error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _check(group, request)
    if group is None or error is not ErrorCode.NONE:
        return Decision(effects=(Reply(waiter, answers.sync_error(error)),))
    draft = Draft(group, state.settings, now_ms)
    if group.state is State.STABLE:
        return _repeat_assignment(draft, request.member_id, waiter)
    return _received(draft, request, waiter, state.settings)


def _check(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.is_empty:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_generation(
        request.member_id, request.group_instance_id, request.generation_id
    )
    if error is not ErrorCode.NONE:
        return error
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _repeat_assignment(draft: Draft, member_id: str, waiter: Waiter[SyncGroupResponse]) -> Decision:
    group = draft.group
    response = answers.synced(group, group.members[member_id])
    if member_id not in group.unsynced:
        return Decision(effects=(Reply(waiter, response),))
    draft.received_sync(member_id)
    draft.reply(waiter, response)
    return draft.decision()


def _received(
    draft: Draft,
    request: SyncGroupRequest,
    waiter: Waiter[SyncGroupResponse],
    settings: GroupSettings,
) -> Decision:
    """Delay the sync until the leader's sync brings the assignment."""
    group = draft.group
    member = group.members[request.member_id]
    draft.reply(member.sync, answers.sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    group.put(replace(member, sync=waiter))
    draft.received_sync(request.member_id)
    if request.member_id != group.leader:
        return draft.decision()
    return _assigned(draft, request, settings)


def _assigned(draft: Draft, request: SyncGroupRequest, settings: GroupSettings) -> Decision:
    unassigned = Draft(draft.group, settings, draft.now_ms)
    unassigned.effects += draft.effects
    draft.assign({row.member_id: row.assignment for row in request.assignments})
    if size_of(draft.records[-1]) + HEADER_SIZE <= settings.max_message_bytes:
        return draft.decision()
    # Too large to write. The error is the same as Kafka's; the members retry with a new generation.
    unassigned.reject_syncs(ErrorCode.UNKNOWN_SERVER_ERROR)
    return unassigned.decision()
