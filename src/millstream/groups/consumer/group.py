"""A consumer group (KIP-848): the state that its records hold, and indexes derived from it.

Only ``apply`` changes it. A crash loses nothing about a consumer group: its state is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from millstream.core.decisions import CoordinatorRecord
from millstream.core.errors import ErrorCode
from millstream.groups.consumer import records
from millstream.groups.consumer.member import (
    ConsumerMember,
    Current,
    Info,
    Partitions,
)
from millstream.groups.shard_state import FROM_COMMIT
from millstream.wire.messages.list_groups import ListedGroup

KIND = "consumer"
PROTOCOL_TYPE = "consumer"
# First version of OffsetCommit with a member epoch.
_COMMIT_WITH_EPOCH = 9
_UNCHECKED = -1
# A group starts with an empty assignment in this epoch. Members join with 0, so no group is in
# epoch 0.
_FIRST_EPOCH = 1


class GroupState(Enum):
    """A state of a consumer group, with its name in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    # Subscriptions or topics have changed since the target assignment was computed.
    ASSIGNING = "Assigning"
    # Not all members have reached the target assignment yet.
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ResolvedRegex(NamedTuple):
    """The topics that match a regular expression of the group, at a version of the topics."""

    topics: frozenset[str]
    version: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Durable:
    """All that the records hold about a group, for comparisons."""

    epoch: int
    metadata_hash: int
    assignment_epoch: int
    assignment_timestamp: int
    members: Mapping[str, ConsumerMember]
    target: Mapping[str, Partitions]
    regexes: Mapping[str, ResolvedRegex]
    has_partition_metadata: bool


class ConsumerGroup:
    """A consumer group and its members."""

    __slots__ = (
        "_shared",
        "assignment_epoch",
        "assignment_timestamp",
        "assignors",
        "checked_version",
        "classic_count",
        "epoch",
        "group_id",
        "has_partition_metadata",
        "instances",
        "join_deadlines",
        "members",
        "metadata_hash",
        "names",
        "owners",
        "patterns",
        "regexes",
        "target",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = _FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = _FIRST_EPOCH
        self.assignment_timestamp = records.NO_TIME
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False
        # ---- derived from the members
        self.instances: dict[str, str] = {}
        # (topic id, partition) -> member that owns it or has not revoked it yet
        self.owners: dict[tuple[bytes, int], str] = {}
        # number of members that use a topic name, a regular expression, an assignor
        self.names: dict[str, int] = {}
        self.patterns: dict[str, int] = {}
        self.assignors: dict[str, int] = {}
        self.classic_count = 0
        # Soft: the version of the topics against which the subscription was last checked.
        self.checked_version = _UNCHECKED
        # Soft: classic members that must join again, and by when.
        self.join_deadlines: dict[str, int] = {}
        # Of a copy: the dictionaries that are still shared with the original group.
        self._shared: set[str] = set()

    def copy(self) -> ConsumerGroup:
        """Return a copy to decide with.

        A dictionary is copied when it is first changed, because most decisions about a group with
        thousands of members concern one member.
        """
        copy = ConsumerGroup.__new__(ConsumerGroup)
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._shared = set(_DICTIONARIES)
        return copy

    def own(self, *names: str) -> None:
        """Copy these dictionaries before a change, if they are shared."""
        for name in self._shared.intersection(names):
            setattr(self, name, dict(getattr(self, name)))
            self._shared.remove(name)

    @property
    def durable(self) -> Durable:
        return Durable(
            self.epoch,
            self.metadata_hash,
            self.assignment_epoch,
            self.assignment_timestamp,
            dict(self.members),
            dict(self.target),
            dict(self.regexes),
            self.has_partition_metadata,
        )

    # ---- derived state ----

    def replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Replace a member, add it without ``old``, or remove it without ``new``."""
        self.own("members")
        if old is not None:
            self._remove(old)
        if new is not None:
            self._add_member(new)

    def _remove(self, member: ConsumerMember) -> None:
        info = member.info
        del self.members[member.member_id]
        if (
            info.instance_id is not None
            and self.instances.get(info.instance_id) == member.member_id
        ):
            self.own("instances")
            del self.instances[info.instance_id]
        for partition in member.current.partitions():
            if self.owners.get(partition) == member.member_id:
                self.own("owners")
                del self.owners[partition]
        self._count(info, -1)

    def _add_member(self, member: ConsumerMember) -> None:
        info = member.info
        self.members[member.member_id] = member
        if info.instance_id is not None:
            self.own("instances")
            self.instances[info.instance_id] = member.member_id
        for partition in member.current.partitions():
            self.own("owners")
            self.owners[partition] = member.member_id
        self._count(info, 1)

    def _count(self, info: Info, by: int) -> None:
        self.own("names", "patterns", "assignors")
        for topic in info.topics:
            _add(self.names, topic, by)
        if info.regex:
            _add(self.patterns, info.regex, by)
        if info.assignor is not None:
            _add(self.assignors, info.assignor, by)
        self.classic_count += by if info.classic is not None else 0

    # ---- properties ----

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.current.is_reconciled_to(epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.instances.get(instance_id)
        return self.members.get(member_id) if member_id is not None else None

    def subscribed(self) -> set[str]:
        """Return every topic that a member subscribes to, by name or by regular expression."""
        topics = set(self.names)
        for pattern in self.patterns:
            resolved = self.regexes.get(pattern)
            if resolved is not None:
                topics |= resolved.topics
        return topics

    def topics_of(self, info: Info) -> frozenset[str]:
        """Return the topics of a member. An unresolved regular expression matches nothing yet."""
        resolved = self.regexes.get(info.regex) if info.regex else None
        return info.topics | resolved.topics if resolved is not None else info.topics

    def preferred_assignor(self, known: Sequence[str]) -> str:
        """Return the assignor with the most votes; on a tie, the first in the broker's list."""
        votes = self.assignors
        return max(known, key=lambda name: votes.get(name, 0)) if votes else known[0]

    def is_unreleased(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        """Return whether another member owns the partition or has not revoked it yet."""
        owner = self.owners.get((topic_id, partition))
        return owner is not None and owner != member_id

    # ---- methods for groups of any kind ----

    def listed(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=PROTOCOL_TYPE,
            group_state=self.state.value,
            group_type=KIND,
        )

    def subscribes_to(self, topic: str) -> bool:
        if topic in self.names:
            return True
        return any(
            topic in self.regexes[pattern].topics
            for pattern in self.patterns
            if pattern in self.regexes
        )

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
        """Check a commit.

        An older epoch is valid for partitions that the member has owned since then.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and not member.is_classic and version < _COMMIT_WITH_EPOCH:
            return ErrorCode.UNSUPPORTED_VERSION
        current = member.current
        if epoch == current.epoch or (epoch < current.epoch and _had_all(current, topics, epoch)):
            return ErrorCode.NONE
        return _stale(member)

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.current.epoch else _stale(member)

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def offsets_expire_from(self) -> int | None:
        return FROM_COMMIT

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        ids: Iterable[str] = dict.fromkeys((*self.members, *self.target))
        return records.group_tombstones(self.group_id, ids, self.regexes)


_DICTIONARIES = (
    "members",
    "target",
    "regexes",
    "instances",
    "owners",
    "names",
    "patterns",
    "assignors",
)


def _add(counts: dict[str, int], name: str, by: int) -> None:
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        counts.pop(name, None)


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH


def _had_all(current: Current, topics: Sequence[Any], epoch: int) -> bool:
    for topic in topics:
        for row, error in zip(topic.partitions, topic.errors, strict=True):
            if error is ErrorCode.NONE:
                since = current.owned_since(topic.topic_id, row.partition_index)
                if since is None or epoch < since:
                    return False
    return True
