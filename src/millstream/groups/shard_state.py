"""What the parts of a group shard share: settings, topics, the table of live groups, and what every kind of group can tell.

A group is looked up by its id. Its kind is *classic* (members join and sync), *consumer* (KIP-848), or *simple*: nobody ever joined,
there are only offsets; to clients that is an empty classic group without a protocol.
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

# An offset's retention counts from its own commit.
FROM_COMMIT = -1


@dataclass(frozen=True, slots=True)
class GroupContext:
    """Who asks: version of the request, client id, and the client's address as Kafka writes it ("/10.0.0.1")."""

    version: int
    client_id: str = ""
    client_host: str = ""


class Group(Protocol):
    """What the shard asks of a group of any kind."""

    group_id: str

    @property
    def is_empty(self) -> bool:
        """Without members, so that it may be deleted or taken over by the other kind."""

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
        """``topics`` are the request's, with name and topic id, so that an epoch can be checked by partition."""

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> ErrorCode: ...

    def check_offset_delete(self) -> ErrorCode: ...

    def check_delete(self) -> ErrorCode: ...

    def offsets_expire_from(self) -> int | None:
        """None: not now. FROM_COMMIT: each from its commit. Otherwise the time from which retention counts for all."""

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Records that delete everything about the group but its offsets."""


@dataclass(slots=True)
class ShardState:
    """One per shard. ``classic`` and ``consumer`` hold live groups by id; an id is in one of them at most. Durable, and so written by
    ``apply`` alone, are ``offsets`` and ``metadata``: the last record of every classic group."""

    settings: GroupSettings
    topics: Topics
    new_id: Callable[[], str]
    offsets: Offsets = field(default_factory=Offsets)
    metadata: dict[str, GroupMetadataValue] = field(default_factory=dict)
    classic: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer: dict[str, Any] = field(default_factory=dict)

    def find(self, group_id: str) -> Group | None:
        """The group, whatever its kind; a simple one is made up on the spot."""
        group = self.classic.get(group_id) or self.consumer.get(group_id)
        if group is None and self.offsets.has(group_id):
            return ClassicGroup(group_id)
        return group

    def ids(self) -> list[str]:
        """All groups of the shard."""
        known = dict.fromkeys(self.classic)
        known.update(dict.fromkeys(self.consumer))
        known.update(dict.fromkeys(self.offsets.groups()))
        return list(known)
