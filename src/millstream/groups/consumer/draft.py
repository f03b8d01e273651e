"""A decision about a consumer group in progress: records that are applied to a copy of the group.

Every step sees the changes of the previous steps, through the same ``apply`` that replay uses. The
live group does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.core.decisions import Arm, CoordinatorRecord, Decision, Disarm
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.assignors.builtin import ASSIGNORS, MemberSpec
from millstream.groups.consumer import records, replay
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.member import (
    ConsumerMember,
    Current,
    Info,
    MemberState,
    join_timer,
    rebalance_timer,
    session_timer,
    sync_timer,
)
from millstream.groups.consumer.reconciliation import Claimed, Fenced, reconcile
from millstream.groups.consumer.subscription import metadata_hash, topic_ids
from millstream.groups.consumer.topic_patterns import Resolver
from millstream.groups.records import max_size_of, size_of
from millstream.groups.settings import GroupSettings
from millstream.groups.shard_state import ShardState
from millstream.groups.topics_view import Topics
from millstream.wire.records.layout import HEADER_SIZE

# Fewer records than this always fit into a batch.
_ALWAYS_FIT = 16
# From this number of members on, the minimum interval between assignments is a millisecond for each
# member.
_LARGE_GROUP = 200


@dataclass(frozen=True, slots=True)
class TopicsChecked:
    """Effect: the group's subscription was checked against this version of the topics."""

    group_id: str
    version: int


@dataclass(frozen=True, slots=True)
class SetJoinDeadline:
    """Effect: a classic member must join again by this time; None once it has joined."""

    group_id: str
    member_id: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Environment:
    """The shard of consumer groups, and the regular expressions it has resolved."""

    state: ShardState
    resolver: Resolver

    @property
    def settings(self) -> GroupSettings:
        return self.state.settings

    @property
    def topics(self) -> Topics:
        return self.state.topics

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that the broker supports, the default first."""
        return tuple(
            name for name in self.state.settings.group_consumer_assignors if name in ASSIGNORS
        )


class Draft:
    """A copy of a consumer group, with the records and effects of a decision about it."""

    def __init__(self, env: Environment, group: ConsumerGroup, now_ms: int) -> None:
        self.env = env
        self.group = group
        self.now_ms = now_ms
        self.records: list[CoordinatorRecord] = []
        self.effects: list[Any] = []
        self._copied = False

    @property
    def group_id(self) -> str:
        return self.group.group_id

    def emit(self, record: CoordinatorRecord) -> None:
        if not self._copied:
            self.group = self.group.copy()
            self._copied = True
        self.records.append(record)
        replay.apply(self.group, record)

    def prepend(self, decision: Decision) -> None:
        """Start with a decision about another group, as part of the same decision."""
        self.records += decision.records
        self.effects += decision.effects

    def decision(self) -> Decision:
        return Decision(tuple(self.records), tuple(self.effects))

    def check_size(self) -> None:
        """Raise if the records do not fit into one batch: such a group cannot be assigned."""
        room = self.env.settings.max_message_bytes - HEADER_SIZE
        if len(self.records) < _ALWAYS_FIT or sum(map(max_size_of, self.records)) <= room:
            return
        if sum(map(size_of, self.records)) > room:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "the assignment of the group is too large for a batch",
            )

    # ---- timers ----

    def arm_session(self, member: ConsumerMember) -> None:
        timeout_ms = member.session_timeout_ms(self.env.settings.session_timeout_ms(self.group_id))
        self.effects.append(
            Arm(session_timer(self.group_id, member.member_id), self.now_ms + timeout_ms)
        )

    def disarm_all(self, member: ConsumerMember) -> None:
        timers = [
            session_timer,
            rebalance_timer,
            *((join_timer, sync_timer) if member.is_classic else ()),
        ]
        self.effects += [Disarm(timer(self.group_id, member.member_id)) for timer in timers]
        if member.member_id in self.group.join_deadlines:
            self.effects.append(SetJoinDeadline(self.group_id, member.member_id, None))

    # ---- members ----

    def update(self, member_id: str, info: Info) -> None:
        known = self.group.members.get(member_id)
        if known is None or known.info != info:
            self.emit(records.member(self.group_id, member_id, info))

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give everything of a static member to its successor, which has a new id and joins."""
        new = ConsumerMember(
            member_id,
            old.info,
            Current(0, 0, old.current.state, old.current.assigned, old.current.revoking),
        )
        target = self.group.target.get(old.member_id, {})
        self.remove(old)
        self.emit(records.member(self.group_id, member_id, new.info))
        self.emit(records.target(self.group_id, member_id, target))
        self.emit(records.current(self.group_id, member_id, new.current))
        return new

    def remove(self, member: ConsumerMember) -> None:
        for record in records.member_tombstones(self.group_id, member.member_id):
            self.emit(record)
        self.disarm_all(member)

    # ---- subscriptions ----

    def refresh(self, *, bump: bool) -> None:
        """Bump the epoch if ``bump``, or if the topics of the subscription have changed."""
        version = self.env.topics.version
        stale = self.group.checked_version != version
        due = self.regexes_are_due()
        if not bump and not stale and not due:
            return
        bump |= self._resolve_regexes(everything=stale or due, force=due)
        computed = metadata_hash(self.group.subscribed(), self.env.topics)
        if bump or computed != self.group.metadata_hash:
            self.emit(records.group_epoch(self.group_id, self.group.epoch + 1, computed))
        if self.group.has_partition_metadata:
            self.emit(records.partition_metadata_tombstone(self.group_id))
        if stale:
            self.effects.append(TopicsChecked(self.group_id, version))

    def regexes_are_due(self) -> bool:
        """Return whether the regular expressions must be resolved again.

        This is a safety net for missed changes of topics. Brokers that read these records may rely
        on their timestamps.
        """
        resolved = self.group.regexes
        times = [
            resolved[pattern].timestamp for pattern in self.group.patterns if pattern in resolved
        ]
        interval_ms = self.env.settings.group_consumer_regex_refresh_interval_ms
        return bool(times) and self.now_ms > min(times) + interval_ms

    def _resolve_regexes(self, *, everything: bool, force: bool) -> bool:
        """Return whether a regular expression matches other topics than before.

        With ``force`` a record with the current time is written in any case.
        """
        changed = False
        topics = self.env.topics
        for pattern in sorted(self.group.patterns):
            known = self.group.regexes.get(pattern)
            if known is not None and not everything:
                continue
            matching = self.env.resolver.resolve(pattern, topics)
            differs = known is None or known.topics != matching
            changed |= differs
            if differs or force:
                self.emit(
                    records.regex(self.group_id, pattern, matching, topics.version, self.now_ms)
                )
        return changed

    def drop_unused_regexes(self) -> None:
        for pattern in [
            pattern for pattern in self.group.regexes if pattern not in self.group.patterns
        ]:
            self.emit(records.regex_tombstone(self.group_id, pattern))

    # ---- assignment ----

    def assign(self) -> None:
        """Compute a new target assignment if the group has changed and the interval has passed."""
        group = self.group
        if group.assignment_epoch >= group.epoch or not self._may_assign():
            return
        counts = topic_ids(group.subscribed(), self.env.topics)
        assign = ASSIGNORS[group.preferred_assignor(self.env.assignors)]
        target = assign(self._specs(), counts)
        for member_id in list(group.members):
            if self.group.target.get(member_id) != target[member_id]:
                self.emit(records.target(self.group_id, member_id, target[member_id]))
        self.emit(records.target_epoch(self.group_id, group.epoch, self.now_ms))

    def _may_assign(self) -> bool:
        """Return whether the assignment interval has passed.

        If not, a later heartbeat assigns, and members follow the current target until then. The
        first assignment has no timestamp.
        """
        interval_ms = self.env.settings.assignment_interval_ms(self.group_id)
        if len(self.group.members) > _LARGE_GROUP:
            # Each join assigns all members: thousands of joins at once would take quadratic time.
            interval_ms = max(interval_ms, len(self.group.members))
        last_ms = self.group.assignment_timestamp
        return (
            interval_ms == 0 or last_ms == records.NO_TIME or self.now_ms >= last_ms + interval_ms
        )

    def _specs(self) -> dict[str, MemberSpec]:
        group, topics = self.group, self.env.topics
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        specs = {}
        for member_id, member in group.members.items():
            subscribed = group.topics_of(member.info)
            if subscribed not in ids:
                ids[subscribed] = frozenset(topic_ids(subscribed, topics))
            target = group.target.get(member_id, {})
            specs[member_id] = MemberSpec(ids[subscribed], member.info.instance_id, target)
        return specs

    def reconcile(self, member_id: str, claimed: Claimed, *, subscription_changed: bool) -> None:
        """Advance the member towards its target.

        UNREVOKED_PARTITIONS has a time limit, which restarts only when the state changes.
        """
        group = self.group
        member = group.members[member_id]
        if not subscription_changed and member.current.is_reconciled_to(group.assignment_epoch):
            return
        try:
            current = reconcile(
                member.current,
                group.assignment_epoch,
                group.target.get(member_id, {}),
                topic_ids(group.topics_of(member.info), self.env.topics),
                lambda topic_id, partition: group.is_unreleased(member_id, topic_id, partition),
                claimed,
                subscription_changed=subscription_changed,
            )
        except Fenced:
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "the state of the member is unknown; it must join again",
            ) from None
        if current == member.current:
            return
        self.emit(records.current(self.group_id, member_id, current))
        if not member.is_classic:
            self._time_revocation(member, current)

    def _time_revocation(self, member: ConsumerMember, current: Current) -> None:
        timer = rebalance_timer(self.group_id, member.member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            self.effects.append(Arm(timer, self.now_ms + member.info.rebalance_timeout_ms))
        else:
            self.effects.append(Disarm(timer))
