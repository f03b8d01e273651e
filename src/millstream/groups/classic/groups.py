"""The classic groups of a shard: what their records say, how they are loaded, and how they change kind."""

from __future__ import annotations

from millstream.core.decisions import Decision, Disarm, Reply
from millstream.core.errors import ErrorCode
from millstream.groups.classic import answers
from millstream.groups.classic.draft import Draft, join_timer, sync_timer
from millstream.groups.classic.group import ClassicGroup, loaded
from millstream.groups.classic.member import session_timer
from millstream.groups.effects import Become
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
    """Every member gets a fresh session. Groups above a limit that was lowered rebalance, so that some may go."""
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
    """The group becomes a consumer group (KIP-848): its record goes, whoever waits is told to come again, its timers stop."""
    effects: list[object] = [Become(group.group_id, None), Disarm(join_timer(group.group_id))]
    effects.append(Disarm(sync_timer(group.group_id)))
    for member in group.members.values():
        if member.join is not None:
            error = answers.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            effects.append(Reply(member.join, error))
        if member.sync is not None:
            effects.append(Reply(member.sync, answers.sync_error(ErrorCode.REBALANCE_IN_PROGRESS)))
        effects.append(Disarm(session_timer(group.group_id, member.member_id)))
    effects += [Disarm(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending)]
    return Decision((group_tombstone(group.group_id),), tuple(effects))


def adopt(group: ClassicGroup, settings: GroupSettings, now_ms: int, *, rebalance: bool) -> Decision:
    """A consumer group becomes this classic one: it is written, its members' sessions begin, and (mostly) it rebalances at once."""
    draft = Draft(group, settings, now_ms)
    draft.records.append(group.record())
    for member in group.members.values():
        draft.arm_session(member)
    if rebalance:
        draft.prepare_rebalance()
    return draft.decision()
