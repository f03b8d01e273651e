"""Conversion of live groups from the classic to the consumer protocol and back (KIP-848).

The first member that joins a classic group with the consumer protocol converts it to a consumer
group. The other members stay in it with the classic protocol (``classic_requests``). When the last
member with the consumer protocol has left, the group becomes classic again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.classic.groups import adopt, dissolve
from millstream.groups.classic.member import Member
from millstream.groups.classic.states import State
from millstream.groups.consumer import records
from millstream.groups.consumer.draft import Draft, Environment
from millstream.groups.consumer.group import PROTOCOL_TYPE, ConsumerGroup
from millstream.groups.consumer.leave import fence
from millstream.groups.consumer.member import (
    ClassicInfo,
    ConsumerMember,
    Current,
    Info,
    MemberState,
    Partitions,
)
from millstream.groups.consumer.subscription import metadata_hash
from millstream.groups.migration.embedded_protocol import (
    assignment_of,
    by_id,
    encode_assignment,
    subscription_of,
)
from millstream.groups.records import size_of
from millstream.groups.settings import GroupSettings
from millstream.wire.records.layout import HEADER_SIZE
from millstream.wire.schema import DecodeError

_ALLOWS_UPGRADE = frozenset({"upgrade", "bidirectional"})
_ALLOWS_DOWNGRADE = frozenset({"downgrade", "bidirectional"})


def policy(settings: GroupSettings) -> str:
    return settings.group_consumer_migration_policy.lower()


# ---- classic to consumer ----


def upgrade(env: Environment, classic: ClassicGroup, now_ms: int) -> Draft:
    """Convert a classic group; raise ApiError if that is not possible.

    Members keep their assignments, in the epoch of their generation.
    """
    _check_upgrade(classic, env.settings)
    try:
        members = _upgraded(env, classic)
    except DecodeError:
        raise _cannot_upgrade(
            classic, "the subscriptions of its members cannot be decoded"
        ) from None
    draft = Draft(env, ConsumerGroup(classic.group_id), now_ms)
    draft.prepend(dissolve(classic))
    for member, _ in members:
        draft.emit(records.member(draft.group_id, member.member_id, member.info))
    computed = metadata_hash(draft.group.subscribed(), env.topics)
    draft.emit(records.group_epoch(draft.group_id, classic.generation, computed))
    for member, target in members:
        draft.emit(records.target(draft.group_id, member.member_id, target))
    draft.emit(records.target_epoch(draft.group_id, classic.generation, records.NO_TIME))
    for member, _ in members:
        draft.emit(records.current(draft.group_id, member.member_id, member.current))
        draft.arm_session(member)
    return draft


def _check_upgrade(classic: ClassicGroup, settings: GroupSettings) -> None:
    if policy(settings) not in _ALLOWS_UPGRADE:
        raise _cannot_upgrade(classic, "group.consumer.migration.policy does not allow upgrades")
    if not classic.is_consumer:
        raise _cannot_upgrade(classic, "its members are not consumers")
    if len(classic.members) > settings.group_consumer_max_size:
        raise _cannot_upgrade(classic, "it has too many members")


def _cannot_upgrade(classic: ClassicGroup, reason: str) -> ApiError:
    message = f"classic group {classic.group_id} cannot become a consumer group: {reason}"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _upgraded(env: Environment, classic: ClassicGroup) -> list[tuple[ConsumerMember, Partitions]]:
    """Return the converted members and their targets; raise DecodeError if one cannot be decoded.

    A partition that the classic leader assigned to two members stays with the first.
    """
    protocol = classic.protocol_name or classic.select_protocol()
    taken: set[tuple[bytes, int]] = set()
    upgraded: list[tuple[ConsumerMember, Partitions]] = []
    for member in classic.members.values():
        subscription = subscription_of(member.metadata(protocol))
        assignment = assignment_of(member.assignment)
        if assignment.user_data:
            raise _cannot_upgrade(classic, "its assignor stores user data in the assignments")
        info = Info(
            instance_id=member.instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=frozenset(subscription.topics),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicInfo(member.session_timeout_ms, member.protocols),
        )
        owned = {
            topic_id: frozenset(index for index in indexes if (topic_id, index) not in taken)
            for topic_id, indexes in by_id(assignment.assigned_partitions, env.topics).items()
        }
        taken.update((topic_id, index) for topic_id, indexes in owned.items() for index in indexes)
        target = {topic_id: indexes for topic_id, indexes in owned.items() if indexes}
        epoch = classic.generation
        assigned = {topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in target.items()}
        current = Current(epoch, epoch, MemberState.STABLE, assigned)
        upgraded.append((ConsumerMember(member.member_id, info, current), target))
    return upgraded


# ---- consumer to classic ----


def fence_or_downgrade(draft: Draft, members: Sequence[ConsumerMember]) -> None:
    """Remove members. If only classic members are left, convert the group and rebalance."""
    if members and _can_downgrade(draft, members):
        downgrade(draft, members, rebalance=True)
    elif members:
        fence(draft, members)


def _can_downgrade(draft: Draft, leaving: Sequence[ConsumerMember]) -> bool:
    group = draft.group
    left = len(group.members) - len(leaving)
    classic_left = group.classic_count - sum(member.is_classic for member in leaving)
    return (
        left > 0 and classic_left == left and may_downgrade(draft, left) and _fits(draft, leaving)
    )


def _fits(draft: Draft, leaving: Sequence[ConsumerMember]) -> bool:
    """Return whether the classic group fits into a record.

    Consumer groups have a record for each member, classic groups a single one.
    """
    leaving_ids = {member.member_id for member in leaving}
    classic = _downgraded(
        draft,
        [member for member in draft.group.members.values() if member.member_id not in leaving_ids],
    )
    adoption = adopt(classic, draft.env.settings, draft.now_ms, rebalance=True)
    written = [*draft.group.tombstones(), *adoption.records]
    return sum(map(size_of, written)) + HEADER_SIZE <= draft.env.settings.max_message_bytes


def may_downgrade(draft: Draft, size: int) -> bool:
    settings = draft.env.settings
    return policy(settings) in _ALLOWS_DOWNGRADE and size <= settings.group_max_size


def downgrade(draft: Draft, leaving: Sequence[ConsumerMember], *, rebalance: bool) -> None:
    group = draft.group
    leaving_ids = {member.member_id for member in leaving}
    staying = [member for member in group.members.values() if member.member_id not in leaving_ids]
    classic = _downgraded(draft, staying)
    for member in group.members.values():
        draft.disarm_all(member)
    for record in group.tombstones():
        draft.emit(record)
    draft.prepend(adopt(classic, draft.env.settings, draft.now_ms, rebalance=rebalance))


def _downgraded(draft: Draft, members: Sequence[ConsumerMember]) -> ClassicGroup:
    """Return the classic group: its generation is the group epoch, its assignment the target."""
    classic = ClassicGroup(
        draft.group_id,
        state=State.STABLE,
        since_ms=draft.now_ms,
        protocol_type=PROTOCOL_TYPE,
        generation=draft.group.epoch,
    )
    for member in members:
        assert member.info.classic is not None
        classic.put(
            Member(
                member_id=member.member_id,
                instance_id=member.info.instance_id,
                client_id=member.info.client_id,
                client_host=member.info.client_host,
                rebalance_timeout_ms=member.info.rebalance_timeout_ms,
                session_timeout_ms=member.info.classic.session_timeout_ms,
                protocols=member.info.classic.protocols,
            )
        )
    classic.protocol_name = classic.select_protocol()
    for row in list(classic.members.values()):
        target = draft.group.target.get(row.member_id, {})
        subscription = row.metadata(classic.protocol_name)
        classic.put(
            replace(row, assignment=encode_assignment(target, draft.env.topics, subscription))
        )
    classic.subscribed = classic.compute_subscribed()
    return classic
