"""What the target's topic must become for its source's: created, grown, and with which settings. Pure.

The target follows the source, except in what is the target's own business (replication, throttles, ``min.insync.replicas``; KIP-382 leaves the same
out) and in the time of records: a copy keeps its time, so the target's topic takes the time that it is given, however old or new it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST_MS = str(2**63 - 1)

OWN_BUSINESS = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "message.timestamp.difference.max.ms",
    }
)
# Tiered storage is a matter of the cluster that has it.
OWN_PREFIXES = ("remote.", "local.")
TIMES: Mapping[str, str] = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": LONGEST_MS,
    "message.timestamp.after.max.ms": LONGEST_MS,
}


@dataclass(frozen=True)
class TopicState:
    """A topic as a cluster has it; ``settings`` are only those that were set on it."""

    partitions: int
    replication_factor: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicPlan:
    """What is to be done to the target's topic; nothing where it is as it should be."""

    create: TopicState | None = None
    grow_to: int | None = None
    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.grow_to or self.set or self.delete)


def plan_topic(
    source: TopicState, target: TopicState | None, *, brokers: int, follow_settings: bool
) -> TopicPlan:
    """``brokers`` of the target bound its replicas. Without ``follow_settings`` a topic that exists keeps its settings."""
    wanted = synced(source.settings)
    if target is None:
        replicas = max(1, min(source.replication_factor, brokers))
        return TopicPlan(create=TopicState(source.partitions, replicas, {**wanted, **TIMES}))
    grow_to = source.partitions if source.partitions > target.partitions else None
    if not follow_settings:
        return TopicPlan(grow_to=grow_to)
    wanted = {**wanted, **TIMES}
    changed = {name: value for name, value in wanted.items() if target.settings.get(name) != value}
    surplus = tuple(sorted(name for name in synced(target.settings) if name not in wanted))
    return TopicPlan(grow_to=grow_to, set=changed, delete=surplus)


def synced(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings in which the target follows its source."""
    return {
        name: value
        for name, value in settings.items()
        if name not in OWN_BUSINESS and name not in TIMES and not name.startswith(OWN_PREFIXES)
    }


def overwrites_times(target: TopicState | None) -> bool:
    """Whether a topic that is left as it is gives copies the time of their arrival."""
    return target is not None and target.settings.get("message.timestamp.type") == "LogAppendTime"
