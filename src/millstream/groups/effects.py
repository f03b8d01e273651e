"""Effects of group decisions that the shard itself carries out (``GroupShard.perform``): how its soft state changes."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.topics_view import Topics


@dataclass(frozen=True, slots=True)
class Become:
    """A classic group is from now on this; None where it is no more, or has become a consumer group."""

    group_id: str
    group: ClassicGroup | None


@dataclass(frozen=True, slots=True)
class SeeTopics:
    """The topics are from now on these."""

    topics: Topics


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is left to clean up: groups whose offsets may have expired, and (group, topic, topic id) of deleted topics."""

    groups: tuple[str, ...] = ()
    deleted: tuple[tuple[str, str, bytes], ...] = ()
