"""A member of a consumer group (KIP-848): its subscription and its current assignment.

Each has its record. ``Info`` is written when the member changes its subscription, ``Current`` at
every step towards its target assignment. All values are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from millstream.core.decisions import TimerKey
from millstream.wire.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

# topic id -> partitions
Partitions = Mapping[bytes, frozenset[int]]
# topic id -> partition -> group epoch at which the member got it
Owned = Mapping[bytes, Mapping[int, int]]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
NO_EPOCH = -1


class MemberState(IntEnum):
    """Progress of a member towards its target assignment; records hold the numbers."""

    STABLE = 0
    # It must revoke partitions and has not confirmed that yet.
    UNREVOKED_PARTITIONS = 1
    # It waits for partitions that other members have not released.
    UNRELEASED_PARTITIONS = 2
    # Written by a later version.
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        return _STATES.get(number, cls.UNKNOWN)


_STATES = {int(state): state for state in MemberState}


@dataclass(frozen=True, slots=True)
class ClassicInfo:
    """The data of a member that still uses the classic protocol (JoinGroup, SyncGroup)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Info:
    """The subscription of a member and other data of its requests."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicInfo | None = None

    def value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=_classic_value(self.classic),
        )

    @classmethod
    def of(cls, value: ConsumerGroupMemberMetadataValue) -> Info:
        return cls(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=_classic_of(value.classic_member_metadata),
        )


def _classic_value(classic: ClassicInfo | None) -> ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
        ],
    )


def _classic_of(value: ClassicMemberMetadata | None) -> ClassicInfo | None:
    if value is None:
        return None
    protocols = tuple((row.name, bytes(row.metadata)) for row in value.supported_protocols)
    return ClassicInfo(value.session_timeout_ms, protocols)


@dataclass(frozen=True, slots=True)
class Current:
    """The current assignment of a member.

    The member reads ``assigned``. It must revoke ``revoking``, but may still be reading it.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    def value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_owned_rows(self.assigned),
            partitions_pending_revocation=_owned_rows(self.revoking),
        )

    @classmethod
    def of(cls, value: ConsumerGroupCurrentMemberAssignmentValue) -> Current:
        return cls(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState.of(value.state),
            assigned=_owned_of(value.assigned_partitions, value.member_epoch),
            revoking=_owned_of(value.partitions_pending_revocation, value.member_epoch),
        )

    def advanced(
        self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned | None = None
    ) -> Current:
        """Return the assignment in the next epoch or state."""
        return Current(epoch, self.epoch, state, assigned, revoking if revoking is not None else {})

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def owned_since(self, topic_id: bytes, partition: int) -> int | None:
        """Return the first epoch that may commit for a partition, or None if it is not assigned."""
        since = self.assigned.get(topic_id, {}).get(partition)
        return since if since is not None else self.revoking.get(topic_id, {}).get(partition)

    def partitions(self) -> Iterable[tuple[bytes, int]]:
        """Yield all partitions that no other member may get."""
        for owned in (self.assigned, self.revoking):
            for topic_id, rows in owned.items():
                for partition in rows:
                    yield topic_id, partition


def _owned_rows(owned: Owned) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(rows),
            assignment_epochs=[rows[partition] for partition in sorted(rows)],
        )
        for topic_id, rows in sorted(owned.items())
    ]


def _owned_of(rows: Iterable[TopicPartitions], default_epoch: int) -> Owned:
    """Return owned partitions with their epochs.

    Records of Kafka before 4.2 have no epochs. The member's epoch is then a safe default.
    """
    owned: dict[bytes, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [default_epoch] * len(row.partitions)
        owned.setdefault(row.topic_id, {}).update(zip(row.partitions, epochs, strict=True))
    return {topic_id: partitions for topic_id, partitions in owned.items() if partitions}


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: its id, subscription and current assignment."""

    member_id: str
    info: Info = Info()
    current: Current = Current()

    @property
    def is_classic(self) -> bool:
        return self.info.classic is not None

    def session_timeout_ms(self, default_ms: int) -> int:
        """Return the session timeout of a classic member, or the broker's setting for others."""
        return self.info.classic.session_timeout_ms if self.info.classic is not None else default_ms

    def with_info(self, info: Info) -> ConsumerMember:
        return replace(self, info=info)

    def with_current(self, current: Current) -> ConsumerMember:
        return replace(self, current=current)


def names_of(rows: Iterable[Any]) -> dict[bytes, set[int]]:
    """Return the partitions of a request by topic id."""
    partitions: dict[bytes, set[int]] = {}
    for row in rows:
        partitions.setdefault(row.topic_id, set()).update(row.partitions)
    return partitions


# ---- timers ----


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return ("consumer-session", group_id, member_id)


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """The timer for the end of the time to revoke partitions."""
    return ("consumer-rebalance", group_id, member_id)


def join_timer(group_id: str, member_id: str) -> TimerKey:
    """The timer for the end of a classic member's time to join again."""
    return ("consumer-join", group_id, member_id)


def sync_timer(group_id: str, member_id: str) -> TimerKey:
    """The timer for the end of a classic member's time to sync."""
    return ("consumer-sync", group_id, member_id)
