"""State that the parts of a group shard share: settings, topics, live groups.

A group is looked up by its id. Its kind is *classic* (members join and sync), *consumer* (KIP-848)
or *simple*. A simple group has only offsets and never had members; clients see it as an empty
classic group without a protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from millstream.core.decisions import CoordinatorRecord
from millstream.core.errors import ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.offsets.committed import Offsets
from millstream.groups.settings import GroupSettings
from millstream.groups.topics_view import Topics
from millstream.wire.group_records import GroupMetadataValue

if TYPE_CHECKING:
    from millstream.wire.messages.list_groups import ListedGroup

# Retention starts with the commit of each offset.
FROM_COMMIT = -1


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The client of a request. ``client_host`` is its address as Kafka writes it ("/10.0.0.1")."""

    version: int
    client_id: str = ""
    client_host: str = ""


class Group(Protocol):
    """The methods that the shard needs of groups of any kind."""

    group_id: str

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members. It may then be deleted or replaced."""

    def listed(self) -> ListedGroup: ...

    def subscribes_to(self, topic: str) -> bool: ...

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

        ``topics`` have names and ids, so that the epoch is checked by partition.
        """

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> ErrorCode: ...

    def check_offset_delete(self) -> ErrorCode: ...

    def check_delete(self) -> ErrorCode: ...

    def offsets_expire_from(self) -> int | None:
        """Return the time from which retention counts for all offsets.

        None if offsets do not expire now; FROM_COMMIT if each expires from its commit.
        """

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Return the records that delete everything about the group except its offsets."""


@dataclass(slots=True)
class ShardState:
    """The state of a shard.

    ``classic`` and ``consumer`` hold live groups; an id is in only one of them. ``offsets`` and
    ``metadata`` (the last record of every classic group) are durable, so only ``apply`` changes
    them.
    """

    settings: GroupSettings
    topics: Topics
    new_id: Callable[[], str]
    offsets: Offsets = field(default_factory=Offsets)
    metadata: dict[str, GroupMetadataValue] = field(default_factory=dict)
    classic: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer: dict[str, Any] = field(default_factory=dict)

    def find(self, group_id: str) -> Group | None:
        """Return the group of any kind. A simple group is created on the fly."""
        group = self.classic.get(group_id) or self.consumer.get(group_id)
        if group is None and self.offsets.has(group_id):
            return ClassicGroup(group_id)
        return group

    def ids(self) -> list[str]:
        """Return the ids of all groups of the shard."""
        known = dict.fromkeys(self.classic)
        known.update(dict.fromkeys(self.consumer))
        known.update(dict.fromkeys(self.offsets.groups()))
        return list(known)
