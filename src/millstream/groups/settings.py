"""What the operator decides about groups; fields are named after Kafka's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_INT_MAX = 2**31 - 1


class OwnSettings(NamedTuple):
    """What holds for one consumer group that has settings of its own; in the order of GROUP_BOUNDS."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A shard's settings; the host replaces the whole value when one changes."""

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
    # ---- the topic __consumer_offsets itself: its max.message.bytes bounds what one decision may write
    max_message_bytes: int = 1_048_588
    # ---- consumer groups with settings of their own, by group id
    own: Mapping[str, OwnSettings] = field(default_factory=dict)

    def session_timeout_ms(self, group_id: str) -> int:
        own = self.own.get(group_id)
        return own.session_timeout_ms if own is not None else self.group_consumer_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        own = self.own.get(group_id)
        return own.heartbeat_interval_ms if own is not None else self.group_consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        own = self.own.get(group_id)
        return own.assignment_interval_ms if own is not None else self.group_consumer_assignment_interval_ms

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
