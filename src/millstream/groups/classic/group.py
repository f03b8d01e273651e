"""A live classic group: its members and its state.

All of this is soft state. Only the record of the last completed sync (``metadata``) is durable;
``loaded`` restores the group from it. A group in the shard's table never changes. Decisions work on
a copy (``draft.py``), which then replaces the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.core.decisions import CoordinatorRecord
from millstream.core.errors import ErrorCode
from millstream.groups.classic.member import Member
from millstream.groups.classic.states import COMMIT, DELETE, NEXT_STATES, State
from millstream.groups.classic.subscription import CONSUMER_PROTOCOL, subscribed_topics
from millstream.groups.records import NO_TIMESTAMP, group_tombstone
from millstream.wire.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from millstream.wire.messages.list_groups import ListedGroup

KIND = "classic"


@dataclass(frozen=True, slots=True)
class InitialDelay:
    """The delay of an empty group's first rebalance: current delay, and maximum remaining time."""

    delay_ms: int
    remaining_ms: int


@dataclass(slots=True)
class ClassicGroup:
    """The state of a group, its generation and its members."""

    group_id: str
    state: State = State.EMPTY
    previous: State = State.DEAD
    since_ms: int = NO_TIMESTAMP
    protocol_type: str | None = None
    protocol_name: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    # instance id -> member id
    instances: dict[str, str] = field(default_factory=dict)
    # Ids that were handed out to members that have not joined with them yet (KIP-394).
    pending: frozenset[str] = frozenset()
    # Members that have not synced in this generation.
    unsynced: frozenset[str] = frozenset()
    # protocol -> number of members that support it
    supported: dict[str, int] = field(default_factory=dict)
    # Number of members with a delayed join.
    joined: int = 0
    # Whether a member has joined during the initial delay.
    has_new_members: bool = False
    initial: InitialDelay | None = None
    subscribed: frozenset[str] | None = None

    # ---- properties ----

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def all_joined(self) -> bool:
        return self.joined == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def can_become(self, state: State) -> bool:
        return state in NEXT_STATES[self.state]

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Return whether a member with these protocols can join the group."""
        if self.is_empty:
            return bool(protocol_type) and bool(names)
        member_count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.supported.get(name, 0) == member_count for name in names
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes.

        Every member votes for the first of its protocols that all members support. On a tie, the
        protocol that got a vote first wins.
        """
        member_count = len(self.members)
        candidates = {name for name, count in self.supported.items() if count == member_count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def compute_subscribed(self) -> frozenset[str] | None:
        if not self.is_consumer:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        return subscribed_topics(
            member.metadata(self.protocol_name) for member in self.members.values()
        )

    # ---- checks ----

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        error = self.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        topics: Sequence[Any],
        *,
        transactional: bool,
        version: int,
    ) -> ErrorCode:
        if epoch < 0 and self.is_empty:
            # A consumer with manual assignment, or an operator: allowed while the group has no
            # members.
            return ErrorCode.NONE
        if epoch >= 0 or member_id or instance_id is not None:
            error = self.check_generation(member_id, instance_id, epoch)
            if error is not ErrorCode.NONE:
                return error
        elif not transactional:
            # Transactional commits before KIP-447 (v0-2) carry no member id; all others must.
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if transactional else COMMIT[self.state]

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        if self.is_empty or self.is_consumer:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def check_delete(self) -> ErrorCode:
        return DELETE[self.state]

    # ---- offsets ----

    def subscribes_to(self, topic: str) -> bool:
        """Return whether the group reads a topic.

        If the subscription of a consumer group is unknown, all topics count as subscribed.
        """
        if self.subscribed is None:
            return self.is_consumer
        return topic in self.subscribed

    def offsets_expire_from(self) -> int | None:
        if self.protocol_type is None:
            return NO_TIMESTAMP
        if self.is_empty:
            return self.since_ms
        if self.is_consumer and self.subscribed is not None and self.state is State.STABLE:
            return NO_TIMESTAMP
        return None

    # ---- records and listings ----

    def listed(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            group_state=self.state.value,
            group_type=KIND,
        )

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        return (group_tombstone(self.group_id),)

    def record(self) -> CoordinatorRecord:
        """Return the record of the group: its generation and the assignment of every member."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=self.since_ms,
            members=[
                _member_metadata(member, self.protocol_name) for member in self.members.values()
            ],
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), value)

    # ---- changes (only on a copy) ----

    def copy(self) -> ClassicGroup:
        return replace(
            self,
            members=dict(self.members),
            instances=dict(self.instances),
            supported=dict(self.supported),
        )

    def transition_to(self, state: State, now_ms: int) -> None:
        assert self.can_become(state), f"{self.group_id}: {self.state} -> {state}"
        self.previous = self.state
        self.state = state
        self.since_ms = now_ms

    def put(self, member: Member) -> None:
        """Add a member, or replace the member with the same id."""
        self._uncount(self.members.get(member.member_id))
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        for name, _ in member.protocols:
            self.supported[name] = self.supported.get(name, 0) + 1
        self.joined += member.join is not None

    def remove(self, member_id: str) -> None:
        self.pending -= {member_id}
        self.unsynced -= {member_id}
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._uncount(member)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _uncount(self, member: Member | None) -> None:
        if member is None:
            return
        self.joined -= member.join is not None
        for name, _ in member.protocols:
            self.supported[name] -= 1
            if not self.supported[name]:
                del self.supported[name]


def _member_metadata(member: Member, protocol: str | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )


def successor_record(
    group_id: str, value: GroupMetadataValue, instance_id: str | None, member_id: str
) -> CoordinatorRecord | None:
    """Return the group's last record with a new member id for an instance id.

    Return None if no other member has this instance id.
    """
    old = next(
        (row for row in value.members if row.group_instance_id == instance_id is not None), None
    )
    if old is None or old.member_id == member_id:
        return None
    members = [_renamed(row, member_id) if row is old else row for row in value.members]
    changed = GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=member_id if value.leader == old.member_id else value.leader,
        current_state_timestamp=value.current_state_timestamp,
        members=members,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group_id), changed)


def _renamed(row: MemberMetadata, member_id: str) -> MemberMetadata:
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=row.group_instance_id,
        client_id=row.client_id,
        client_host=row.client_host,
        rebalance_timeout=row.rebalance_timeout,
        session_timeout=row.session_timeout,
        subscription=row.subscription,
        assignment=row.assignment,
    )


def loaded(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Restore a group from its last record: stable, or empty.

    A rebalance that was in progress is lost; its members join again.
    """
    group = ClassicGroup(
        group_id,
        state=State.STABLE if value.members else State.EMPTY,
        since_ms=value.current_state_timestamp,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        generation=value.generation,
        leader=value.leader,
    )
    for member in _loaded_members(value):
        group.put(member)
    group.subscribed = group.compute_subscribed()
    return group


def _loaded_members(value: GroupMetadataValue) -> Iterable[Member]:
    for row in value.members:
        no_rebalance_timeout = row.rebalance_timeout == -1
        yield Member(
            member_id=row.member_id,
            instance_id=row.group_instance_id,
            client_id=row.client_id,
            client_host=row.client_host,
            rebalance_timeout_ms=row.session_timeout
            if no_rebalance_timeout
            else row.rebalance_timeout,
            session_timeout_ms=row.session_timeout,
            protocols=((value.protocol or "", row.subscription),),
            assignment=row.assignment,
        )
