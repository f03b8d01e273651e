"""Broker settings for groups; the fields have the names of Kafka's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_INT_MAX = 2**31 - 1


class GroupOverrides(NamedTuple):
    """The settings of a consumer group that override the broker's, in the order of GROUP_BOUNDS."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a shard. The host replaces the whole value when a setting changes."""

    # ---- classic groups
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = _INT_MAX
    # ---- offsets
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000
    # ---- consumer groups (KIP-848)
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_assignment_interval_ms: int = 0
    group_consumer_max_size: int = _INT_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    # ---- __consumer_offsets: its max.message.bytes limits the records of a decision
    max_message_bytes: int = 1_048_588
    # ---- settings of single consumer groups, by group id
    overrides: Mapping[str, GroupOverrides] = field(default_factory=dict)

    def session_timeout_ms(self, group_id: str) -> int:
        overrides = self.overrides.get(group_id)
        return (
            overrides.session_timeout_ms
            if overrides is not None
            else self.group_consumer_session_timeout_ms
        )

    def heartbeat_interval_ms(self, group_id: str) -> int:
        overrides = self.overrides.get(group_id)
        return (
            overrides.heartbeat_interval_ms
            if overrides is not None
            else self.group_consumer_heartbeat_interval_ms
        )

    def assignment_interval_ms(self, group_id: str) -> int:
        overrides = self.overrides.get(group_id)
        return (
            overrides.assignment_interval_ms
            if overrides is not None
            else self.group_consumer_assignment_interval_ms
        )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
