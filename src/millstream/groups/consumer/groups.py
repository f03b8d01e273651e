"""The consumer groups of a shard (KIP-848): decides about their requests and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.decisions import (
    NOTHING,
    Arm,
    CoordinatorRecord,
    Decision,
    Reply,
    TimerKey,
    Waiter,
)
from millstream.core.errors import ApiError
from millstream.groups.classic.groups import dissolve
from millstream.groups.consumer import checks, describe, heartbeat, leave, replay
from millstream.groups.consumer.draft import Draft, Environment, TopicsChecked
from millstream.groups.consumer.group import ConsumerGroup, Durable
from millstream.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    rebalance_timer,
)
from millstream.groups.consumer.topic_patterns import Resolver
from millstream.groups.migration import classic_requests, conversion
from millstream.groups.shard_state import GroupContext, ShardState
from millstream.wire.group_records import ConsumerGroupMetadataKey
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class ConsumerShard:
    """The consumer groups of one ``GroupShard``.

    Live groups are in ``ShardState.consumer``. This class handles every record, effect and timer
    that ``groups/shard.py`` does not. The keys of its timers start with "consumer".
    """

    def __init__(self, state: ShardState) -> None:
        self.state = state
        self._env = Environment(state, Resolver())
        self._timeouts: dict[Any, Callable[[ConsumerMember], bool]] = {
            "consumer-session": lambda member: True,
            "consumer-join": lambda member: member.is_classic,
            "consumer-sync": lambda member: member.is_classic,
            "consumer-rebalance": lambda member: (
                member.current.state is MemberState.UNREVOKED_PARTITIONS
            ),
        }

    # ---- state ----

    @property
    def durable(self) -> dict[str, Durable]:
        return {group_id: group.durable for group_id, group in self.state.consumer.items()}

    def apply(self, record: CoordinatorRecord) -> None:
        """Apply a record. A group exists from its first record until the tombstone of its epoch."""
        key, value = record.key, record.value
        if type(key) not in replay.KEYS:
            return
        group = self.state.consumer.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = self.state.consumer[key.group_id] = ConsumerGroup(key.group_id)
        if value is None and type(key) is ConsumerGroupMetadataKey:
            del self.state.consumer[key.group_id]
        else:
            replay.apply(group, record)

    def perform(self, effect: Any) -> None:
        group = self.state.consumer.get(effect.group_id)
        if group is None:
            return
        if type(effect) is TopicsChecked:
            group.checked_version = effect.version
        elif effect.at_ms is None:
            group.join_deadlines.pop(effect.member_id, None)
        else:
            group.join_deadlines[effect.member_id] = effect.at_ms

    # ---- events ----

    def on_loaded(self, *, now_ms: int) -> Decision:
        """Start a new session for every member after loading.

        Members that are revoking partitions get the full rebalance timeout.
        """
        effects: list[Any] = []
        for group in self.state.consumer.values():
            draft = Draft(self._env, group, now_ms)
            for member in group.members.values():
                draft.arm_session(member)
                if (
                    member.current.state is MemberState.UNREVOKED_PARTITIONS
                    and not member.is_classic
                ):
                    deadline = now_ms + member.info.rebalance_timeout_ms
                    draft.effects.append(
                        Arm(rebalance_timer(group.group_id, member.member_id), deadline)
                    )
            effects += draft.effects
        return Decision(effects=tuple(effects))

    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision:
        """Remove a member if the event its timer waited for has not happened."""
        assert isinstance(key, tuple)
        kind, group_id, member_id = key
        group = self.state.consumer.get(group_id)
        member = group.members.get(member_id) if group is not None else None
        if group is None or member is None or not self._timeouts[kind](member):
            return NOTHING
        draft = Draft(self._env, group, now_ms)
        conversion.fence_or_downgrade(draft, [member])
        return draft.decision()

    # ---- requests of the consumer protocol ----

    def decide_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: GroupContext,
        waiter: Waiter[ConsumerGroupHeartbeatResponse],
        *,
        now_ms: int,
    ) -> Decision:
        try:
            checks.check_request(request, context.version, self._env.assignors)
            draft = self._draft(request, now_ms)
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                return self._leave(draft, request, waiter)
            return heartbeat.decide(self._env, draft, request, context, waiter)
        except ApiError as error:
            return heartbeat.rejection(waiter, error)

    def _draft(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Draft:
        """Return a draft of the group of a request.

        A join may create the group, replace an empty classic group, or convert a classic group with
        members.
        """
        group_id = request.group_id
        group = self.state.consumer.get(group_id)
        if group is not None:
            return Draft(self._env, group, now_ms)
        if request.member_epoch != JOIN_EPOCH:
            raise checks.group_not_found(group_id)
        classic = self.state.classic.get(group_id)
        if classic is not None and not classic.is_empty:
            return conversion.upgrade(self._env, classic, now_ms)
        draft = heartbeat.new_group(self._env, group_id, now_ms)
        if classic is not None:
            draft.prepend(dissolve(classic))
        return draft

    def _leave(
        self,
        draft: Draft,
        request: ConsumerGroupHeartbeatRequest,
        waiter: Waiter[ConsumerGroupHeartbeatResponse],
    ) -> Decision:
        member = leave.leaver(draft, request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return leave.leave_temporarily(draft, member, waiter)
        conversion.fence_or_downgrade(draft, [member])
        draft.effects.append(leave.reply(member, LEAVE_EPOCH, waiter))
        return draft.decision()

    def decide_describe(
        self,
        request: ConsumerGroupDescribeRequest,
        context: GroupContext,
        waiter: Waiter[ConsumerGroupDescribeResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return Decision(effects=(Reply(waiter, describe.response(self._env, request)),))

    # ---- requests of the classic protocol ----

    def decide_join(
        self,
        request: JoinGroupRequest,
        context: GroupContext,
        waiter: Waiter[JoinGroupResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return classic_requests.join(self._draft_of(request, now_ms), request, context, waiter)

    def decide_sync(
        self,
        request: SyncGroupRequest,
        context: GroupContext,
        waiter: Waiter[SyncGroupResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return classic_requests.sync(self._draft_of(request, now_ms), request, waiter)

    def decide_classic_heartbeat(
        self,
        request: HeartbeatRequest,
        context: GroupContext,
        waiter: Waiter[HeartbeatResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return classic_requests.heartbeat(self._draft_of(request, now_ms), request, waiter)

    def decide_leave(
        self,
        request: LeaveGroupRequest,
        context: GroupContext,
        waiter: Waiter[LeaveGroupResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return classic_requests.leave(self._draft_of(request, now_ms), request, context, waiter)

    def _draft_of(self, request: Any, now_ms: int) -> Draft:
        return Draft(self._env, self.state.consumer[request.group_id], now_ms)
