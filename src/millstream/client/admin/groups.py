"""Consumer groups: list, describe, how far each is behind; set and delete their offsets, delete them.

Classic groups and those of the consumer protocol (KIP-848) look the same from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.client.admin import group_offsets
from millstream.client.admin.group_assignment import assigned_partitions
from millstream.client.admin.offsets import OffsetAt
from millstream.client.admin.states import GroupState, GroupType, named
from millstream.client.errors import (
    BrokerUnreachable,
    ClientError,
    GroupActive,
    UnknownGroup,
    refusal,
    unknown_group,
)
from millstream.client.protocol import GROUP, Address
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

_NOT_THERE = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One row of a listing; ``type`` is empty where the broker is too old to tell."""

    id: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer; ``epoch`` only in the consumer protocol, where ``target`` is what it is moving to."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One group with its members; ``assignor`` is empty while it has none."""

    id: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: Address
    members: tuple[Member, ...]

    @property
    def active(self) -> bool:
        return bool(self.members)


class Lag(NamedTuple):
    """Where a group is in one partition. None: nothing committed, or nobody can tell because the partition has no leader."""

    partition: TopicPartition
    current: int | None
    start: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        """How many records are still to be read."""
        return None if self.current is None or self.end is None else max(0, self.end - self.current)

    @property
    def lead(self) -> int | None:
        """How many records lie between the first that is kept and the group: at 0 retention takes what it has not read."""
        return None if self.current is None or self.start is None else self.current - self.start


Groups: TypeAlias = list[Group]
_Offsets: TypeAlias = dict[TopicPartition, OffsetAt]


class GroupsAdmin:
    """``admin.groups``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def list(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> Sequence[GroupListing]:
        """All groups, sorted, or those in one of these states and of one of these types."""
        wanted_states, wanted_types = named(GroupState, [*states]), named(GroupType, [*types])
        protocol = self._admin.protocol
        found = protocol.patiently(
            lambda: {one.id: one for broker in protocol.brokers() for one in self._listed(broker.node)},
            doing="list the groups",
        )
        return [
            found[name]
            for name in sorted(found)
            if (not wanted_states or found[name].state in wanted_states)
            and (not wanted_types or found[name].type in wanted_types)
        ]

    def _listed(self, node: int) -> Sequence[GroupListing]:
        answer = self._admin.protocol.ask(ListGroupsRequest(), node=node)
        if answer.error_code:
            raise refusal(answer.error_code, doing="list the groups")
        return [
            GroupListing(one.group_id, one.group_state, one.group_type.lower(), one.protocol_type)
            for one in answer.groups
        ]

    def names(self) -> Sequence[str]:
        return [one.id for one in self.list()]

    def describe(self, names: Iterable[str]) -> Groups:
        """These groups, in the order asked; UnknownGroup for the first that does not exist."""
        return [self.get(name) for name in names]

    def get(self, name: str) -> Group:
        """One group; UnknownGroup, with the nearest names, if there is none."""
        if (found := self.find(name)) is None:
            raise unknown_group(name, self.names())
        return found

    def find(self, name: str) -> Group | None:
        """One group, or None if there is none of this name."""
        return self._admin.protocol.patiently(
            lambda: self._consumer_group(name) or self._classic_group(name), doing=f"describe group {name!r}"
        )

    def _consumer_group(self, name: str) -> Group | None:
        """None for a group that is not of the consumer protocol: that is how a broker answers for all others."""
        if not self._admin.protocol.supports("ConsumerGroupDescribe"):
            return None
        at, found = self._at_coordinator(name, ConsumerGroupDescribeRequest(group_ids=[name]))
        if found is None:
            return None
        members = tuple(_consumer_member(one) for one in found.members)
        return Group(name, found.group_state, "consumer", "consumer", found.assignor_name, at, members)

    def _classic_group(self, name: str) -> Group | None:
        at, found = self._at_coordinator(name, DescribeGroupsRequest(groups=[name]))
        if found is None or found.group_state == "Dead":
            return None
        members = tuple(_classic_member(one) for one in found.members)
        return Group(
            name, found.group_state, "classic", found.protocol_type, found.protocol_data, at, members
        )

    def _at_coordinator(self, name: str, request: Any) -> tuple[Address, Any]:
        at = self._admin.protocol.coordinator(name, GROUP)
        found = self._admin.protocol.ask(request, node=at.node).groups[0]
        if found.error_code in _NOT_THERE:
            return at, None
        if found.error_code:
            reason = getattr(found, "error_message", None)
            raise refusal(found.error_code, doing=f"describe group {name!r}", subject=name, reason=reason)
        return at, found

    def inactive(self, name: str, *, doing: str) -> Group | None:
        """The group if it has no members, None if there is none; GroupActive, naming them, if it has."""
        group = self.find(name)
        if group is not None and group.active:
            members = sorted({f"{one.client_id} at {one.host.lstrip('/')}" for one in group.members})
            shown = ", ".join(members[:3]) + (", ..." if len(members) > 3 else "")
            count = f"{len(group.members)} member{'s' if len(group.members) > 1 else ''}"
            raise GroupActive(
                f"cannot {doing}: it is active ({count}: {shown})",
                hint="stop its consumers first; one that died is gone when its session ends",
                code=ErrorCode.NON_EMPTY_GROUP,
            )
        return group

    def committed(self, name: str) -> dict[TopicPartition, int]:
        """The committed offsets of a group, sorted; none for a group that does not exist."""
        return group_offsets.committed(self._admin.protocol, name)

    def lags(self, group: str | Group) -> Sequence[Lag]:
        """One row per partition that the group has committed or been assigned, sorted."""
        described = self.get(group) if isinstance(group, str) else group
        committed = self.committed(described.id)
        owners = {partition: member for member in described.members for partition in member.assignment}
        partitions = sorted(committed.keys() | owners.keys())
        start, end = self._ends(partitions)
        return [
            Lag(
                one,
                committed.get(one),
                start[one].offset if one in start else None,
                end[one].offset if one in end else None,
                owners.get(one),
            )
            for one in partitions
        ]

    def _ends(self, partitions: Sequence[TopicPartition]) -> tuple[_Offsets, _Offsets]:
        """The first and the next offset of each partition; none where nobody leads, which is looked at again before every try."""
        start: _Offsets = {}
        end: _Offsets = {}

        def ask(limit_s: float) -> None:
            leaders = self._admin.protocol.leaders(one.topic for one in partitions)
            led = [one for one in partitions if leaders.get(one) is not None]
            self._admin.offsets.ask_rest(dict.fromkeys(led, "earliest"), start, limit_s)
            self._admin.offsets.ask_rest(dict.fromkeys(led, "latest"), end, limit_s)

        self._admin.patience.persist(ask, doing="list offsets")
        return start, end

    def alter(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members; a group that does not exist begins to."""
        self.inactive(name, doing=f"set offsets of group {name!r}")
        if offsets:
            group_offsets.commit(self._admin.protocol, name, offsets)

    def delete(self, *names: str) -> None:
        """Delete groups with their offsets. None is deleted unless all of them exist and have no members."""
        for name in names:
            self.check_deletable(name)
        for problem in self.delete_each(names).values():
            if problem is not None:
                raise problem

    def check_deletable(self, name: str) -> None:
        """UnknownGroup if there is none, GroupActive if it has members."""
        if self.inactive(name, doing=f"delete group {name!r}") is None:
            raise unknown_group(name, self.names())

    def delete_each(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete those of the groups that can be deleted; for each what stood in the way, None where nothing did."""
        outcomes: dict[str, ClientError | None] = {}
        for name in names:
            outcomes[name] = _problem(self.check_deletable, name) or _problem(
                group_offsets.delete, self._admin.protocol, name
            )
        return outcomes

    def delete_offsets(self, name: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget committed offsets. A group that reads the topic now is not asked to forget: GroupActive."""
        request = OffsetDeleteRequest(group_id=name, topics=_by_topic(partitions))
        try:
            self._admin.protocol.patiently(
                lambda: self._delete_offsets(name, request),
                doing=f"delete offsets of group {name!r}",
                done=group_offsets.gone_counts_as_done,  # a group without members and offsets is no more
            )
        except UnknownGroup:
            raise unknown_group(name, self.names()) from None

    def _delete_offsets(self, name: str, request: OffsetDeleteRequest) -> None:
        at = self._admin.protocol.coordinator(name, GROUP)
        answer = self._admin.protocol.ask(request, node=at.node)
        doing = f"delete offsets of group {name!r}"
        if answer.error_code:
            raise refusal(answer.error_code, doing=doing, subject=name)
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code:
                    where = f"{doing} in {topic.name}-{one.partition_index}"
                    raise refusal(one.error_code, doing=where, subject=name)


def _problem(action: Callable[..., Any], *arguments: Any, **more: Any) -> ClientError | None:
    """What an action complains about; no broker at all is not a matter of one group, and is raised."""
    try:
        action(*arguments, **more)
    except BrokerUnreachable:
        raise
    except ClientError as error:
        return error
    return None


def _by_topic(partitions: Iterable[TopicPartition]) -> list[OffsetDeleteRequestTopic]:
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for one in sorted(partitions):
        topics.setdefault(one.topic, []).append(OffsetDeleteRequestPartition(partition_index=one.partition))
    return [OffsetDeleteRequestTopic(name=name, partitions=rows) for name, rows in topics.items()]


def _classic_member(found: Any) -> Member:
    assignment = assigned_partitions(found.member_assignment)
    return Member(found.member_id, found.client_id, found.client_host, found.group_instance_id, assignment)


def _consumer_member(found: Any) -> Member:
    return Member(
        found.member_id,
        found.client_id,
        found.client_host,
        found.instance_id,
        _partitions(found.assignment),
        _partitions(found.target_assignment),
        found.member_epoch,
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    rows = assignment.topic_partitions
    return tuple(sorted(TopicPartition(row.topic_name, index) for row in rows for index in row.partitions))
