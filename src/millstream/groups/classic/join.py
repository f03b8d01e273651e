"""JoinGroup for a classic group, or for one that the request creates.

- v4+: a member without an id gets one and must join again with it (KIP-394).
- v5+: static members. A restarted static member replaces its predecessor without a rebalance if the
  group's protocol stays the same (KIP-345).
- v9+: the response tells a restarted leader to skip the assignment.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.core.decisions import Arm, Decision, Reply, Waiter
from millstream.core.errors import ErrorCode
from millstream.groups.classic import answers
from millstream.groups.classic.draft import Draft
from millstream.groups.classic.group import ClassicGroup, successor_record
from millstream.groups.classic.member import Member, protocols_of, session_timer
from millstream.groups.classic.states import State
from millstream.groups.shard_state import GroupContext, ShardState
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

_NEEDS_MEMBER_ID = 4
_SKIPS_ASSIGNMENT = 9


def decide(
    state: ShardState,
    request: JoinGroupRequest,
    context: GroupContext,
    waiter: Waiter[JoinGroupResponse],
    now_ms: int,
) -> Decision:
    """Decide about a join to a group that is classic, simple or unknown."""
    group = state.classic.get(request.group_id)
    if group is None and request.member_id:
        return _reject(waiter, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
    is_new_group = group is None
    if group is None:
        group = ClassicGroup(request.group_id, since_ms=now_ms)
    names = {protocol.name for protocol in request.protocols}
    if not _has_room(group, request.member_id, state.settings.group_max_size):
        return _reject_and_drop(group, state, request, waiter, now_ms)
    if not group.supports(request.protocol_type, names):
        return _reject(waiter, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    draft = Draft(group, state.settings, now_ms)
    if is_new_group:
        draft.records.append(group.record())
    join = _Join(state, request, context, waiter, draft)
    return join.join_new() if not request.member_id else join.join_existing()


def check(state: ShardState, request: JoinGroupRequest) -> ErrorCode:
    """Check the conditions that apply to joins to groups of any kind."""
    settings = state.settings
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    minimum, maximum = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not minimum <= request.session_timeout_ms <= maximum:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _reject(
    waiter: Waiter[JoinGroupResponse], error: ErrorCode, member_id: str = answers.NO_MEMBER
) -> Decision:
    return Decision(effects=(Reply(waiter, answers.join_error(error, member_id)),))


def _has_room(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    """Return whether the group has room for the member.

    During a rebalance only members that have joined count. If the limit was lowered, the last
    members to join are rejected.
    """
    if group.is_empty:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING_REBALANCE:
        return (member is not None and member.join is not None) or group.joined < max_size
    return member is not None or len(group.members) < max_size


def _reject_and_drop(
    group: ClassicGroup,
    state: ShardState,
    request: JoinGroupRequest,
    waiter: Waiter[JoinGroupResponse],
    now_ms: int,
) -> Decision:
    rejection = _reject(waiter, ErrorCode.GROUP_MAX_SIZE_REACHED)
    if request.member_id not in group.members and request.member_id not in group.pending:
        return rejection
    draft = Draft(group, state.settings, now_ms)
    draft.drop(request.member_id)
    draft.maybe_complete_join()
    return draft.decision() + rejection


class _Join:
    """A join that has passed the first checks, and the draft it changes."""

    def __init__(
        self,
        state: ShardState,
        request: JoinGroupRequest,
        context: GroupContext,
        waiter: Waiter[JoinGroupResponse],
        draft: Draft,
    ) -> None:
        self.state = state
        self.request = request
        self.context = context
        self.waiter = waiter
        self.draft = draft
        self.group = draft.group
        self.protocols = protocols_of(request.protocols)
        # v0 has a single timeout for both.
        self.rebalance_timeout_ms = (
            request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
        )

    # ---- without a member id ----

    def join_new(self) -> Decision:
        instance_id = self.request.group_instance_id
        if instance_id is not None:
            member_id = f"{instance_id}-{self.state.new_id()}"
            predecessor = self.group.instances.get(instance_id)
            return (
                self._replace_static(predecessor, member_id)
                if predecessor
                else self._enter(member_id)
            )
        member_id = f"{self.context.client_id}-{self.state.new_id()}"
        return (
            self._hand_out_id(member_id)
            if self.context.version >= _NEEDS_MEMBER_ID
            else self._enter(member_id)
        )

    def _hand_out_id(self, member_id: str) -> Decision:
        """Hand out a member id, which expires with the session timeout.

        A client that never gets this response leaves no member behind.
        """
        draft = self.draft
        self.group.pending |= {member_id}
        deadline = draft.now_ms + self.request.session_timeout_ms
        draft.effects.append(Arm(session_timer(self.group.group_id, member_id), deadline))
        draft.reply(self.waiter, answers.join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return draft.decision()

    def _enter(self, member_id: str) -> Decision:
        self._claim_instance(member_id)
        self.draft.add(self._member(member_id), self.request.protocol_type)
        self.draft.rebalance()
        return self.draft.decision()

    def _member(self, member_id: str) -> Member:
        return Member(
            member_id=member_id,
            instance_id=self.request.group_instance_id,
            client_id=self.context.client_id,
            client_host=self.context.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.request.session_timeout_ms,
            protocols=self.protocols,
            is_new=True,
            join=self.waiter,
        )

    # ---- static members that rejoin ----

    def _replace_static(self, old_id: str, new_id: str) -> Decision:
        """Replace a static member by one with a new id, and fence the old id."""
        draft, group = self.draft, self.group
        old = group.members[old_id]
        was_leader, unsynced = group.leader == old_id, old_id in group.unsynced
        draft.reply(old.join, answers.join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
        draft.reply(old.sync, answers.sync_error(ErrorCode.FENCED_INSTANCE_ID))
        draft.disarm_session(old_id)
        group.remove(old_id)
        successor = self._updated(
            replace(old, member_id=new_id, join=None, sync=None, is_new=False)
        )
        group.put(successor)
        if was_leader:
            group.leader = new_id
        if unsynced:
            group.unsynced |= {new_id}
        draft.arm_session(successor)
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            return self._replace_without_rebalance(old_id, successor, was_leader)
        self._claim_instance(new_id)
        group.put(replace(successor, join=self.waiter))
        draft.rebalance()
        return draft.decision()

    def _claim_instance(self, member_id: str) -> None:
        """Write the last record again, with the new member id for this instance id.

        During a rebalance the log still has the previous member. If the coordinator changed now, it
        would load that member and fence the new one for good.
        """
        value = self.state.metadata.get(self.group.group_id)
        record = value and successor_record(
            self.group.group_id, value, self.request.group_instance_id, member_id
        )
        if record:
            self.draft.records.append(record)

    def _replace_without_rebalance(
        self, old_id: str, successor: Member, was_leader: bool
    ) -> Decision:
        """Replace the member without a rebalance: the assignment stays.

        Before v9 a response cannot tell a leader to skip the assignment. The response then carries
        the old leader's id, so that the member does not act as the leader.
        """
        draft, group = self.draft, self.group
        group.subscribed = group.compute_subscribed()
        skips = self.context.version >= _SKIPS_ASSIGNMENT
        response = answers.joined(
            group,
            successor.member_id,
            include_members=skips and was_leader,
            skip_assignment=skips and was_leader,
        )
        if was_leader and not skips:
            response.leader = old_id
        draft.records.append(group.record())
        draft.reply(self.waiter, response)
        return draft.decision()

    # ---- with a member id ----

    def join_existing(self) -> Decision:
        member_id, group = self.request.member_id, self.group
        if member_id in group.pending and self.request.group_instance_id is None:
            return self._enter(member_id)
        error = group.check_member(member_id, self.request.group_instance_id)
        if error is not ErrorCode.NONE:
            return _reject(self.waiter, error, member_id)
        member = group.members[member_id]
        if self._changes_nothing(member):
            is_leader = member_id == group.leader
            return Decision(
                effects=(
                    Reply(self.waiter, answers.joined(group, member_id, include_members=is_leader)),
                )
            )
        self.draft.delay_join(self._updated(member), self.waiter)
        self.draft.rebalance()
        return self.draft.decision()

    def _changes_nothing(self, member: Member) -> bool:
        """Return whether to answer with the current generation again, without a rebalance.

        The member may have missed the response to its join. A join of a stable group's leader
        always rebalances: its assignment may change without its subscription, for example with new
        partitions.
        """
        group = self.group
        if group.state is State.PREPARING_REBALANCE or member.protocols != self.protocols:
            return False
        return group.state is State.COMPLETING_REBALANCE or member.member_id != group.leader

    def _updated(self, member: Member) -> Member:
        return replace(
            member,
            protocols=self.protocols,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.request.session_timeout_ms,
        )
