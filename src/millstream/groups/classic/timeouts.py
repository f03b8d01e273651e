"""Timeouts of classic groups."""

from __future__ import annotations

from millstream.core.decisions import NOTHING, Decision
from millstream.groups.classic.draft import Draft
from millstream.groups.classic.states import State
from millstream.groups.shard_state import ShardState


def session_expired(state: ShardState, group_id: str, member_id: str, now_ms: int) -> Decision:
    """Remove a member whose session has expired, or which never joined with the id it got."""
    group = state.classic.get(group_id)
    if group is None:
        return NOTHING
    member = group.members.get(member_id)
    if member is None and member_id not in group.pending:
        return NOTHING
    if member is not None and member.waits:
        return NOTHING
    draft = Draft(group, state.settings, now_ms)
    draft.drop(member_id)
    if group.state is State.PREPARING_REBALANCE:
        if draft.group.all_joined:
            draft.complete_join()
    elif member is not None:
        draft.rebalance()
    return draft.decision()


def join_timed_out(state: ShardState, group_id: str, now_ms: int) -> Decision:
    """Continue after the initial delay or the rebalance timeout."""
    group = state.classic.get(group_id)
    if group is None or group.state is not State.PREPARING_REBALANCE:
        return NOTHING
    draft = Draft(group, state.settings, now_ms)
    if group.initial is not None:
        draft.end_initial_delay(group.initial)
    else:
        draft.complete_join()
    return draft.decision()


def sync_timed_out(state: ShardState, group_id: str, now_ms: int) -> Decision:
    """Remove members that joined but never synced."""
    group = state.classic.get(group_id)
    if group is None or not group.unsynced:
        return NOTHING
    draft = Draft(group, state.settings, now_ms)
    for member_id in sorted(group.unsynced):
        draft.drop(member_id)
    draft.prepare_rebalance()
    return draft.decision()
