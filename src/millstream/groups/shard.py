"""One partition of ``__consumer_offsets``: decides about its groups and their offsets.

``decide_*`` methods only read. Requests are routed by the kind of their group. Classic and simple
groups are handled here, consumer groups by ``consumer`` (KIP-848). The latter also handles the
classic requests of members that have not migrated yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millstream.core.decisions import Arm, CoordinatorRecord, Decision, Reply, TimerKey, Waiter
from millstream.core.errors import ErrorCode
from millstream.groups import listing
from millstream.groups.classic import answers, join, leave, sync, timeouts
from millstream.groups.classic import groups as classic
from millstream.groups.classic.states import HEARTBEAT
from millstream.groups.consumer.groups import ConsumerShard
from millstream.groups.effects import SetClassicGroup, SetTopics, Sweep
from millstream.groups.offsets import commit as offsets_commit
from millstream.groups.offsets import delete, expiry, fetch
from millstream.groups.settings import GroupSettings
from millstream.groups.shard_state import GroupContext, ShardState
from millstream.groups.topics_view import Topics
from millstream.wire.group_records import GroupMetadataKey, OffsetCommitKey
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)


class GroupShard:
    """The groups of one partition."""

    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics,
        new_id: Callable[[], str],
    ) -> None:
        self.state = ShardState(settings, topics, new_id)
        self._sweep = Sweep()
        self._consumer = ConsumerShard(self.state)
        self._timeouts: dict[Any, Callable[..., Decision]] = {
            "session": lambda now_ms, group_id, member_id: timeouts.session_expired(
                self.state, group_id, member_id, now_ms
            ),
            "join": lambda now_ms, group_id: timeouts.join_timed_out(self.state, group_id, now_ms),
            "sync": lambda now_ms, group_id: timeouts.sync_timed_out(self.state, group_id, now_ms),
            expiry.EXPIRY_TIMER[0]: lambda now_ms: expiry.start_round(
                self.state, self._sweep, now_ms
            ),
            expiry.SWEEP_TIMER[0]: lambda now_ms: expiry.step(self.state, self._sweep, now_ms),
        }

    # ---- state ----

    @property
    def durable(self) -> Any:
        """Everything that ``apply`` has written, for comparisons."""
        return dict(self.state.metadata), self.state.offsets.durable, self._consumer.durable

    @property
    def settings(self) -> GroupSettings:
        return self.state.settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self.state.settings = settings

    def apply(self, record: CoordinatorRecord) -> None:
        key = record.key
        if type(key) is OffsetCommitKey:
            self.state.offsets.apply(key, record.value)
        elif type(key) is GroupMetadataKey:
            classic.apply(self.state, key, record.value)
        else:
            self._consumer.apply(record)

    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None:
        if type(record.key) is OffsetCommitKey and record.value is not None:
            self.state.offsets.apply_transactional(record.key, record.value, producer_id)
        else:
            self.apply(record)

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        self.state.offsets.apply_marker(producer_id, commit)

    def perform(self, effect: Any) -> None:
        """Change soft state, after the records of the decision are in the log."""
        if type(effect) is SetClassicGroup:
            if effect.group is None:
                self.state.classic.pop(effect.group_id, None)
            else:
                self.state.classic[effect.group_id] = effect.group
        elif type(effect) is Sweep:
            self._sweep = effect
        elif type(effect) is SetTopics:
            self.state.topics = effect.topics
        else:
            self._consumer.perform(effect)

    # ---- events ----

    def on_loaded(self, *, now_ms: int) -> Decision:
        interval_ms = self.state.settings.offsets_retention_check_interval_ms
        decision = classic.on_loaded(self.state, now_ms) + self._consumer.on_loaded(now_ms=now_ms)
        return decision + Decision(effects=(Arm(expiry.EXPIRY_TIMER, now_ms + interval_ms),))

    def on_topics_changed(self, topics: Topics, *, now_ms: int) -> Decision:
        """Replace the view of the topics.

        A consumer group checks its topics with its next heartbeat, so that not all groups do so at
        once.
        """
        return expiry.topics_changed(self.state, self._sweep, topics, now_ms)

    def decide_timeout(self, key: TimerKey, *, now_ms: int) -> Decision:
        assert isinstance(key, tuple)
        decide = self._timeouts.get(key[0])
        if decide is not None:
            return decide(now_ms, *key[1:])
        return self._consumer.decide_timeout(key, now_ms=now_ms)

    # ---- members ----

    def decide_join(
        self,
        request: JoinGroupRequest,
        context: GroupContext,
        waiter: Waiter[JoinGroupResponse],
        *,
        now_ms: int,
    ) -> Decision:
        error = join.check(self.state, request)
        if error is not ErrorCode.NONE:
            rejection = answers.join_error(error, request.member_id)
            return Decision(effects=(Reply(waiter, rejection),))
        group = self.state.consumer.get(request.group_id)
        if group is None:
            return join.decide(self.state, request, context, waiter, now_ms)
        if not group.is_empty:
            return self._consumer.decide_join(request, context, waiter, now_ms=now_ms)
        # An empty consumer group is replaced by a classic group of the same id.
        decision = join.decide(self.state, request, context, waiter, now_ms)
        return Decision(group.tombstones()) + decision if decision.records else decision

    def decide_sync(
        self,
        request: SyncGroupRequest,
        context: GroupContext,
        waiter: Waiter[SyncGroupResponse],
        *,
        now_ms: int,
    ) -> Decision:
        if not request.group_id:
            error = answers.sync_error(ErrorCode.INVALID_GROUP_ID)
            return Decision(effects=(Reply(waiter, error),))
        if request.group_id in self.state.consumer:
            return self._consumer.decide_sync(request, context, waiter, now_ms=now_ms)
        return sync.decide(self.state, request, waiter, now_ms)

    def decide_heartbeat(
        self,
        request: HeartbeatRequest,
        context: GroupContext,
        waiter: Waiter[HeartbeatResponse],
        *,
        now_ms: int,
    ) -> Decision:
        """Decide about a heartbeat, by far the most frequent request.

        This code does only what a live member of a stable group needs.
        """
        group = self.state.classic.get(request.group_id)
        if group is None:
            return self._heartbeat_of_other_group(request, context, waiter, now_ms)
        member_id = request.member_id
        error = group.check_generation(member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return Decision((), (Reply(waiter, HeartbeatResponse(error_code=error)),))
        deadline = now_ms + group.members[member_id].session_timeout_ms
        response = HeartbeatResponse(error_code=HEARTBEAT[group.state])
        return Decision(
            (), (Arm(("session", group.group_id, member_id), deadline), Reply(waiter, response))
        )

    def _heartbeat_of_other_group(
        self,
        request: HeartbeatRequest,
        context: GroupContext,
        waiter: Waiter[HeartbeatResponse],
        now_ms: int,
    ) -> Decision:
        if request.group_id in self.state.consumer:
            return self._consumer.decide_classic_heartbeat(request, context, waiter, now_ms=now_ms)
        error = ErrorCode.UNKNOWN_MEMBER_ID if request.group_id else ErrorCode.INVALID_GROUP_ID
        return Decision((), (Reply(waiter, HeartbeatResponse(error_code=error)),))

    def decide_leave(
        self,
        request: LeaveGroupRequest,
        context: GroupContext,
        waiter: Waiter[LeaveGroupResponse],
        *,
        now_ms: int,
    ) -> Decision:
        if not request.group_id:
            error = LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return Decision(effects=(Reply(waiter, error),))
        if request.group_id in self.state.consumer:
            return self._consumer.decide_leave(request, context, waiter, now_ms=now_ms)
        return leave.decide(self.state, request, context, waiter, now_ms)

    # ---- KIP-848 ----

    def decide_consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: GroupContext,
        waiter: Waiter[ConsumerGroupHeartbeatResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return self._consumer.decide_heartbeat(request, context, waiter, now_ms=now_ms)

    def decide_consumer_describe(
        self,
        request: ConsumerGroupDescribeRequest,
        context: GroupContext,
        waiter: Waiter[ConsumerGroupDescribeResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return self._consumer.decide_describe(request, context, waiter, now_ms=now_ms)

    # ---- groups ----

    def decide_describe(
        self,
        request: DescribeGroupsRequest,
        context: GroupContext,
        waiter: Waiter[DescribeGroupsResponse],
        *,
        now_ms: int,
    ) -> Decision:
        """Describe the groups of a request that belong to this shard.

        Consumer groups are described by ConsumerGroupDescribe.
        """
        return Decision(
            effects=(Reply(waiter, listing.describe(self.state, request, context.version)),)
        )

    def decide_list(
        self,
        request: ListGroupsRequest,
        context: GroupContext,
        waiter: Waiter[ListGroupsResponse],
        *,
        now_ms: int,
        group_ids: Iterable[str] | None = None,
    ) -> Decision:
        """List the given groups that still exist; without ``group_ids`` list all."""
        return Decision(
            effects=(Reply(waiter, listing.list_groups(self.state, request, group_ids)),)
        )

    def decide_delete(
        self,
        request: DeleteGroupsRequest,
        context: GroupContext,
        waiter: Waiter[DeleteGroupsResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return delete.decide_delete(self.state, request, waiter)

    # ---- offsets ----

    def decide_offset_commit(
        self,
        request: OffsetCommitRequest,
        context: GroupContext,
        waiter: Waiter[OffsetCommitResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return offsets_commit.decide(self.state, request, context, waiter, now_ms)

    def decide_txn_offset_commit(
        self,
        request: TxnOffsetCommitRequest,
        context: GroupContext,
        waiter: Waiter[TxnOffsetCommitResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return offsets_commit.decide_transactional(self.state, request, context, waiter, now_ms)

    def decide_offset_fetch(
        self,
        request: OffsetFetchRequestGroup,
        context: GroupContext,
        waiter: Waiter[OffsetFetchResponseGroup],
        *,
        require_stable: bool = False,
        now_ms: int,
    ) -> Decision:
        """Fetch the offsets of one group of a batch. The reply is an OffsetFetchResponseGroup."""
        return fetch.decide(self.state, request, context, waiter, require_stable)

    def decide_offset_delete(
        self,
        request: OffsetDeleteRequest,
        context: GroupContext,
        waiter: Waiter[OffsetDeleteResponse],
        *,
        now_ms: int,
    ) -> Decision:
        return delete.decide_offset_delete(self.state, request, waiter)
