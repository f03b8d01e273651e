"""Effects of group decisions that the shard performs itself: changes of its soft state."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.topics_view import Topics


@dataclass(frozen=True, slots=True)
class SetClassicGroup:
    """Replace a classic group.

    None if the group was deleted or has become a consumer group.
    """

    group_id: str
    group: ClassicGroup | None


@dataclass(frozen=True, slots=True)
class SetTopics:
    """Replace the view of the topics."""

    topics: Topics


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remaining cleanup work.

    ``groups`` may have expired offsets. ``deleted`` lists (group, topic, topic id) of deleted
    topics.
    """

    groups: tuple[str, ...] = ()
    deleted: tuple[tuple[str, str, bytes], ...] = ()
