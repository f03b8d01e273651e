"""Consumer groups: list, describe and delete them, read their lag, set and delete their offsets.

Classic groups and groups of the consumer protocol (KIP-848) look the same from here.
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

_NO_SUCH_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One row of a listing; ``type`` is empty if the broker is too old to report it."""

    id: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer. ``epoch`` and ``target``, its target assignment, need the consumer protocol."""

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
    """The position of a group in one partition.

    ``current`` is None without a committed offset; ``start`` and ``end`` are None without a leader.
    """

    partition: TopicPartition
    current: int | None
    start: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        """The number of records that the group has not read yet."""
        return None if self.current is None or self.end is None else max(0, self.end - self.current)

    @property
    def lead(self) -> int | None:
        """The number of records between the first one kept and the group's position.

        Near 0, retention is about to delete records that the group has not read.
        """
        return None if self.current is None or self.start is None else self.current - self.start


Groups: TypeAlias = list[Group]
_Offsets: TypeAlias = dict[TopicPartition, OffsetAt]


class GroupsAdmin:
    """``admin.groups``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def list(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> Sequence[GroupListing]:
        """Return all groups, sorted, or those with one of these states and types."""
        wanted_states, wanted_types = named(GroupState, [*states]), named(GroupType, [*types])
        protocol = self._admin.protocol
        groups = protocol.patiently(
            lambda: {
                group.id: group
                for broker in protocol.brokers()
                for group in self._listed(broker.node)
            },
            doing="list the groups",
        )
        return [
            groups[name]
            for name in sorted(groups)
            if (not wanted_states or groups[name].state in wanted_states)
            and (not wanted_types or groups[name].type in wanted_types)
        ]

    def _listed(self, node: int) -> Sequence[GroupListing]:
        response = self._admin.protocol.ask(ListGroupsRequest(), node=node)
        if response.error_code:
            raise refusal(response.error_code, doing="list the groups")
        return [
            GroupListing(
                group.group_id, group.group_state, group.group_type.lower(), group.protocol_type
            )
            for group in response.groups
        ]

    def names(self) -> Sequence[str]:
        return [group.id for group in self.list()]

    def describe(self, names: Iterable[str]) -> Groups:
        """Return these groups in order; UnknownGroup for the first that does not exist."""
        return [self.get(name) for name in names]

    def get(self, name: str) -> Group:
        """Return one group; UnknownGroup, with the nearest names, if it does not exist."""
        if (group := self.find(name)) is None:
            raise unknown_group(name, self.names())
        return group

    def find(self, name: str) -> Group | None:
        """Return one group, or None if it does not exist."""
        return self._admin.protocol.patiently(
            lambda: self._consumer_group(name) or self._classic_group(name),
            doing=f"describe group {name!r}",
        )

    def _consumer_group(self, name: str) -> Group | None:
        """Return None for a group that does not use the consumer protocol.

        A broker answers for such a group as if it did not exist.
        """
        if not self._admin.protocol.supports("ConsumerGroupDescribe"):
            return None
        coordinator, described = self._at_coordinator(
            name, ConsumerGroupDescribeRequest(group_ids=[name])
        )
        if described is None:
            return None
        members = tuple(_consumer_member(member) for member in described.members)
        return Group(
            name,
            described.group_state,
            "consumer",
            "consumer",
            described.assignor_name,
            coordinator,
            members,
        )

    def _classic_group(self, name: str) -> Group | None:
        coordinator, described = self._at_coordinator(name, DescribeGroupsRequest(groups=[name]))
        if described is None or described.group_state == "Dead":
            return None
        members = tuple(_classic_member(member) for member in described.members)
        return Group(
            name,
            described.group_state,
            "classic",
            described.protocol_type,
            described.protocol_data,
            coordinator,
            members,
        )

    def _at_coordinator(self, name: str, request: Any) -> tuple[Address, Any]:
        coordinator = self._admin.protocol.coordinator(name, GROUP)
        described = self._admin.protocol.ask(request, node=coordinator.node).groups[0]
        if described.error_code in _NO_SUCH_GROUP:
            return coordinator, None
        if described.error_code:
            reason = getattr(described, "error_message", None)
            raise refusal(
                described.error_code, doing=f"describe group {name!r}", subject=name, reason=reason
            )
        return coordinator, described

    def inactive(self, name: str, *, doing: str) -> Group | None:
        """Return the group if it has no members, or None if it does not exist.

        Raise GroupActive, with the members, if it has some.
        """
        group = self.find(name)
        if group is not None and group.active:
            members = sorted(
                {f"{member.client_id} at {member.host.lstrip('/')}" for member in group.members}
            )
            shown = ", ".join(members[:3]) + (", ..." if len(members) > 3 else "")
            count = f"{len(group.members)} member{'s' if len(group.members) > 1 else ''}"
            raise GroupActive(
                f"cannot {doing}: it is active ({count}: {shown})",
                hint="stop its consumers first; a consumer that died leaves when its session ends",
                code=ErrorCode.NON_EMPTY_GROUP,
            )
        return group

    def committed(self, name: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, sorted; none if it does not exist."""
        return group_offsets.committed(self._admin.protocol, name)

    def lags(self, group: str | Group) -> Sequence[Lag]:
        """Return one row per partition that the group has committed or was assigned, sorted."""
        described = self.get(group) if isinstance(group, str) else group
        committed = self.committed(described.id)
        owners = {
            partition: member for member in described.members for partition in member.assignment
        }
        partitions = sorted(committed.keys() | owners.keys())
        start, end = self._ends(partitions)
        return [
            Lag(
                partition,
                committed.get(partition),
                start[partition].offset if partition in start else None,
                end[partition].offset if partition in end else None,
                owners.get(partition),
            )
            for partition in partitions
        ]

    def _ends(self, partitions: Sequence[TopicPartition]) -> tuple[_Offsets, _Offsets]:
        """Return the first and the next offset of each partition that has a leader.

        Leaders are looked up again before every attempt.
        """
        start: _Offsets = {}
        end: _Offsets = {}

        def list_once(limit_s: float) -> None:
            leaders = self._admin.protocol.leaders(partition.topic for partition in partitions)
            led = [partition for partition in partitions if leaders.get(partition) is not None]
            self._admin.offsets.list_missing(dict.fromkeys(led, "earliest"), start, limit_s)
            self._admin.offsets.list_missing(dict.fromkeys(led, "latest"), end, limit_s)

        self._admin.retries.run(list_once, doing="list offsets")
        return start, end

    def alter(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members; a group that does not exist is created."""
        self.inactive(name, doing=f"set offsets of group {name!r}")
        if offsets:
            group_offsets.commit(self._admin.protocol, name, offsets)

    def delete(self, *names: str) -> None:
        """Delete groups with their offsets.

        None is deleted unless all of them exist and have no members.
        """
        for name in names:
            self.check_deletable(name)
        for problem in self.delete_each(names).values():
            if problem is not None:
                raise problem

    def check_deletable(self, name: str) -> None:
        """Raise UnknownGroup if the group does not exist, GroupActive if it has members."""
        if self.inactive(name, doing=f"delete group {name!r}") is None:
            raise unknown_group(name, self.names())

    def delete_each(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete the groups that can be deleted; return the error of each, or None."""
        outcomes: dict[str, ClientError | None] = {}
        for name in names:
            outcomes[name] = _problem(self.check_deletable, name) or _problem(
                group_offsets.delete, self._admin.protocol, name
            )
        return outcomes

    def delete_offsets(self, name: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets.

        Raise GroupActive if the group reads the topic now.
        """
        request = OffsetDeleteRequest(group_id=name, topics=_by_topic(partitions))
        try:
            self._admin.protocol.patiently(
                lambda: self._delete_offsets(name, request),
                doing=f"delete offsets of group {name!r}",
                # A group without members and offsets is deleted.
                done=group_offsets.missing_counts_as_deleted,
            )
        except UnknownGroup:
            raise unknown_group(name, self.names()) from None

    def _delete_offsets(self, name: str, request: OffsetDeleteRequest) -> None:
        coordinator = self._admin.protocol.coordinator(name, GROUP)
        response = self._admin.protocol.ask(request, node=coordinator.node)
        doing = f"delete offsets of group {name!r}"
        if response.error_code:
            raise refusal(response.error_code, doing=doing, subject=name)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    where = f"{doing} in {topic.name}-{partition.partition_index}"
                    raise refusal(partition.error_code, doing=where, subject=name)


def _problem(action: Callable[..., Any], *arguments: Any, **more: Any) -> ClientError | None:
    """Return the error of an action. An unreachable cluster concerns all groups and is raised."""
    try:
        action(*arguments, **more)
    except BrokerUnreachable:
        raise
    except ClientError as error:
        return error
    return None


def _by_topic(partitions: Iterable[TopicPartition]) -> list[OffsetDeleteRequestTopic]:
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(
            OffsetDeleteRequestPartition(partition_index=partition.partition)
        )
    return [OffsetDeleteRequestTopic(name=name, partitions=rows) for name, rows in topics.items()]


def _classic_member(described: Any) -> Member:
    assignment = assigned_partitions(described.member_assignment)
    return Member(
        described.member_id,
        described.client_id,
        described.client_host,
        described.group_instance_id,
        assignment,
    )


def _consumer_member(described: Any) -> Member:
    return Member(
        described.member_id,
        described.client_id,
        described.client_host,
        described.instance_id,
        _partitions(described.assignment),
        _partitions(described.target_assignment),
        described.member_epoch,
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    rows = assignment.topic_partitions
    return tuple(
        sorted(TopicPartition(row.topic_name, index) for row in rows for index in row.partitions)
    )
