"""The classic groups of a shard: records, loading, and conversion to and from consumer groups."""

from __future__ import annotations

from millstream.core.decisions import Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic import answers
from millstream.groups.classic.draft import Draft, join_timer, sync_timer
from millstream.groups.classic.group import ClassicGroup, loaded
from millstream.groups.classic.member import session_timer
from millstream.groups.effects import SetClassicGroup
from millstream.groups.records import group_tombstone
from millstream.groups.settings import GroupSettings
from millstream.groups.shard_state import ShardState
from millstream.wire.group_records import GroupMetadataKey, GroupMetadataValue


def apply(state: ShardState, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    if value is None:
        state.metadata.pop(key.group, None)
    else:
        state.metadata[key.group] = value


def on_loaded(state: ShardState, now_ms: int) -> Decision:
    """Start a new session for every member after loading.

    Groups above a lowered group.max.size rebalance, so that some members are removed.
    """
    effects: list[object] = []
    for group_id, value in state.metadata.items():
        draft = Draft(loaded(group_id, value), state.settings, now_ms)
        for member in draft.group.members.values():
            draft.arm_session(member)
        if len(draft.group.members) > state.settings.group_max_size:
            draft.prepare_rebalance()
        effects += draft.decision().effects
    return Decision(effects=tuple(effects))


def dissolve(group: ClassicGroup) -> Decision:
    """Remove a group that becomes a consumer group (KIP-848).

    Its record is deleted, delayed requests are answered with REBALANCE_IN_PROGRESS, and its timers
    stop.
    """
    effects: list[object] = [
        SetClassicGroup(group.group_id, None),
        Disarm(join_timer(group.group_id)),
    ]
    effects.append(Disarm(sync_timer(group.group_id)))
    for member in group.members.values():
        if member.join is not None:
            error = answers.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            effects.append(Reply(member.join, error))
        if member.sync is not None:
            effects.append(Reply(member.sync, answers.sync_error(ErrorCode.REBALANCE_IN_PROGRESS)))
        effects.append(Disarm(session_timer(group.group_id, member.member_id)))
    effects += [
        Disarm(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending)
    ]
    return Decision((group_tombstone(group.group_id),), tuple(effects))


def adopt(
    group: ClassicGroup, settings: GroupSettings, now_ms: int, *, rebalance: bool
) -> Decision:
    """Create this classic group from a consumer group.

    It is written, the sessions of its members start, and it rebalances at once if ``rebalance``.
    """
    draft = Draft(group, settings, now_ms)
    draft.records.append(group.record())
    for member in group.members.values():
        draft.arm_session(member)
    if rebalance:
        draft.prepare_rebalance()
    return draft.decision()
