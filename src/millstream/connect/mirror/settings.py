"""Plans how the target's topic follows its source: creation, partitions and settings. Pure.

Some settings belong to the target (replication, throttles, ``min.insync.replicas``); KIP-382
excludes the same ones. A copy keeps the timestamp of its record, so the target's topic accepts any
timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_MS = str(2**63 - 1)

NOT_COPIED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "message.timestamp.difference.max.ms",
    }
)
# Tiered storage is a property of the cluster.
NOT_COPIED_PREFIXES = ("remote.", "local.")
TIMES: Mapping[str, str] = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": MAX_MS,
    "message.timestamp.after.max.ms": MAX_MS,
}


@dataclass(frozen=True)
class TopicState:
    """A topic of a cluster; ``settings`` are those that were set on the topic."""

    partitions: int
    replication_factor: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicPlan:
    """The changes to the target's topic; false if there are none."""

    create: TopicState | None = None
    grow_to: int | None = None
    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.grow_to or self.set or self.delete)


def plan_topic(
    source: TopicState, target: TopicState | None, *, brokers: int, follow_settings: bool
) -> TopicPlan:
    """Return the changes to the target's topic.

    The target has no more replicas than ``brokers``. Without ``follow_settings``, an existing topic
    keeps its settings.
    """
    settings = synced(source.settings)
    if target is None:
        replicas = max(1, min(source.replication_factor, brokers))
        return TopicPlan(create=TopicState(source.partitions, replicas, {**settings, **TIMES}))
    grow_to = source.partitions if source.partitions > target.partitions else None
    if not follow_settings:
        return TopicPlan(grow_to=grow_to)
    settings = {**settings, **TIMES}
    changed = {
        name: value for name, value in settings.items() if target.settings.get(name) != value
    }
    surplus = tuple(sorted(name for name in synced(target.settings) if name not in settings))
    return TopicPlan(grow_to=grow_to, set=changed, delete=surplus)


def synced(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are copied to the target."""
    return {
        name: value
        for name, value in settings.items()
        if name not in NOT_COPIED and name not in TIMES and not name.startswith(NOT_COPIED_PREFIXES)
    }


def overwrites_times(target: TopicState | None) -> bool:
    """Return whether a topic replaces the timestamps of copies by the time of their arrival."""
    return target is not None and target.settings.get("message.timestamp.type") == "LogAppendTime"
