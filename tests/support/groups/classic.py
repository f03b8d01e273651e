"""A shard with one classic group."""

from __future__ import annotations

from millstream.groups.classic.group import ClassicGroup
from millstream.groups.effects import SetClassicGroup
from millstream.groups.settings import GroupSettings
from millstream.groups.shard import GroupShard
from support.groups.world import (
    GROUP,
    SETTINGS,
    new_shard,
)

NOW = 1_000


def shard_with(group: ClassicGroup, settings: GroupSettings = SETTINGS) -> GroupShard:
    shard = new_shard(settings)
    shard.perform(SetClassicGroup(GROUP, group))
    return shard
