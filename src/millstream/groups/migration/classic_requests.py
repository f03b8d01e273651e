"""Requests of the classic protocol to a consumer group, from members that have not migrated yet.

They join, sync and send heartbeats as before; the broker assigns the partitions. A join is answered
at once. If the assignment has changed, the response to a heartbeat makes the member join again.
"""

from __future__ import annotations

from millstream.core.decisions import Arm, Decision, Disarm, Reply, Waiter
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.classic import answers
from millstream.groups.classic import leave as classic_leave
from millstream.groups.classic.member import protocols_of
from millstream.groups.consumer import checks
from millstream.groups.consumer.draft import Draft, SetJoinDeadline
from millstream.groups.consumer.group import PROTOCOL_TYPE, ConsumerGroup
from millstream.groups.consumer.member import (
    ClassicInfo,
    ConsumerMember,
    Info,
    MemberState,
    join_timer,
    sync_timer,
)
from millstream.groups.migration.conversion import (
    downgrade,
    fence_or_downgrade,
    may_downgrade,
    policy,
)
from millstream.groups.migration.embedded_protocol import (
    ConsumerProtocolSubscription,
    by_id,
    encode_assignment,
    subscription_of,
)
from millstream.groups.shard_state import GroupContext
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.schema import DecodeError

_NEEDS_MEMBER_ID = 4
_DISABLED = "disabled"


# ---- join ----


def join(
    draft: Draft,
    request: JoinGroupRequest,
    context: GroupContext,
    waiter: Waiter[JoinGroupResponse],
) -> Decision:
    try:
        return _join(draft, request, context, waiter)
    except ApiError as error:
        rejection = answers.join_error(ErrorCode.of(error.code), request.member_id)
        return Decision(effects=(Reply(waiter, rejection),))


def _join(
    draft: Draft,
    request: JoinGroupRequest,
    context: GroupContext,
    waiter: Waiter[JoinGroupResponse],
) -> Decision:
    _check_join(draft, request)
    is_unknown = not request.member_id
    member_id = request.member_id or draft.env.state.new_id()
    if is_unknown and request.group_instance_id is None and context.version >= _NEEDS_MEMBER_ID:
        response = answers.join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return Decision(effects=(Reply(waiter, response),))
    group = draft.group
    predecessor = (
        group.static_member(request.group_instance_id) if request.group_instance_id else None
    )
    downgrades = predecessor is not None and _is_last_consumer(draft, predecessor)
    subscription = _subscription(request)
    if member_id not in group.members and predecessor is None and subscription.owned_partitions:
        # The member was removed and does not know it: others may already read the partitions it
        # claims. Kafka accepts such a member. Here it has to give up its partitions first.
        raise checks.unknown_member(group, member_id)
    member = _find(draft, request, member_id)
    info = _info(member, request, context, subscription)
    draft.update(member_id, info)
    draft.drop_unused_regexes()
    changed = info.topics != member.info.topics or info.regex != member.info.regex
    draft.refresh(bump=changed)
    if not downgrades:
        draft.assign()
    if not downgrades or draft.group.assignment_epoch >= draft.group.epoch:
        claimed = by_id(subscription.owned_partitions, draft.env.topics)
        draft.reconcile(member_id, claimed, subscription_changed=changed)
    draft.check_size()
    return _joined(draft, member_id, downgrades, waiter)


def _joined(
    draft: Draft, member_id: str, downgrades: bool, waiter: Waiter[JoinGroupResponse]
) -> Decision:
    member = draft.group.members[member_id]
    response = JoinGroupResponse(
        generation_id=member.current.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=_protocol(member)[0],
        member_id=member_id,
    )
    if downgrades:
        rebalance = draft.group.assignment_epoch < draft.group.epoch
        downgrade(draft, [], rebalance=rebalance)
    else:
        draft.effects += [
            Disarm(join_timer(draft.group_id, member_id)),
            SetJoinDeadline(draft.group_id, member_id, None),
        ]
        draft.arm_session(member)
        deadline = draft.now_ms + member.info.rebalance_timeout_ms
        draft.effects.append(Arm(sync_timer(draft.group_id, member_id), deadline))
    draft.effects.append(Reply(waiter, response))
    return draft.decision()


def _check_join(draft: Draft, request: JoinGroupRequest) -> None:
    group, settings = draft.group, draft.env.settings
    if policy(settings) == _DISABLED:
        raise ApiError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "the group does not accept members of the classic protocol",
        )
    checks.check_room(group, request.member_id, request.group_instance_id, settings)
    if request.protocol_type != PROTOCOL_TYPE or not _is_supported(group, request):
        raise ApiError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol is supported by all classic members"
        )


def _is_supported(group: ConsumerGroup, request: JoinGroupRequest) -> bool:
    classic = [
        member.info.classic for member in group.members.values() if member.info.classic is not None
    ]
    known = [{name for name, _ in info.protocols} for info in classic]
    return any(all(row.name in names for names in known) for row in request.protocols)


def _is_last_consumer(draft: Draft, predecessor: ConsumerMember) -> bool:
    """Return whether the joining member replaces the only one with the consumer protocol."""
    group = draft.group
    alone = not predecessor.is_classic and group.classic_count == len(group.members) - 1
    return alone and may_downgrade(draft, len(group.members))


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """Return the subscription of the preferred protocol.

    The broker's assignors replace all protocols.
    """
    try:
        return subscription_of(request.protocols[0].metadata)
    except DecodeError:
        message = "the subscription cannot be decoded"
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message) from None


def _find(draft: Draft, request: JoinGroupRequest, member_id: str) -> ConsumerMember:
    instance_id = request.group_instance_id
    if instance_id is None:
        return draft.group.members.get(member_id) or ConsumerMember(member_id)
    if request.member_id:
        return checks.static_member(draft.group, instance_id, member_id)
    predecessor = draft.group.static_member(instance_id)
    return (
        draft.replace_static(predecessor, member_id) if predecessor else ConsumerMember(member_id)
    )


def _info(
    member: ConsumerMember,
    request: JoinGroupRequest,
    context: GroupContext,
    subscription: ConsumerProtocolSubscription,
) -> Info:
    old = member.info
    timeout_ms = (
        request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
    )
    return Info(
        instance_id=request.group_instance_id or old.instance_id,
        rack_id=subscription.rack_id or old.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else old.rebalance_timeout_ms,
        assignor=old.assignor,
        classic=ClassicInfo(request.session_timeout_ms, protocols_of(request.protocols)),
    )


def _protocol(member: ConsumerMember) -> tuple[str, bytes]:
    assert member.info.classic is not None
    return member.info.classic.protocols[0]


# ---- sync and heartbeat ----


def sync(draft: Draft, request: SyncGroupRequest, waiter: Waiter[SyncGroupResponse]) -> Decision:
    try:
        member = _classic_member(draft.group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
    except ApiError as error:
        return _reject_sync(draft, error.code, waiter)
    name, metadata = _protocol(member)
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        return _reject_sync(draft, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, waiter)
    behind = draft.group.assignment_epoch > member.current.epoch
    if behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        _request_rejoin(draft, member)
        return _reject_sync(draft, ErrorCode.REBALANCE_IN_PROGRESS, waiter)
    draft.effects.append(Disarm(sync_timer(draft.group_id, member.member_id)))
    draft.arm_session(member)
    response = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=encode_assignment(member.current.assigned, draft.env.topics, metadata),
    )
    draft.effects.append(Reply(waiter, response))
    return draft.decision()


def _reject_sync(draft: Draft, error: int, waiter: Waiter[SyncGroupResponse]) -> Decision:
    draft.effects.append(Reply(waiter, answers.sync_error(ErrorCode.of(error))))
    return draft.decision()


def heartbeat(
    draft: Draft, request: HeartbeatRequest, waiter: Waiter[HeartbeatResponse]
) -> Decision:
    try:
        member = _classic_member(draft.group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
    except ApiError as error:
        return Decision(effects=(Reply(waiter, HeartbeatResponse(error_code=error.code)),))
    draft.arm_session(member)
    code = ErrorCode.NONE
    if _must_rejoin(draft.group, member):
        code = ErrorCode.REBALANCE_IN_PROGRESS
        _request_rejoin(draft, member)
    draft.effects.append(Reply(waiter, HeartbeatResponse(error_code=code)))
    return draft.decision()


def _must_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether the member must join again.

    It must if there is a newer assignment, if it has to confirm a revocation, or if the partitions
    it waits for are free.
    """
    current = member.current
    if current.epoch < group.assignment_epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return current.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member)


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    return any(
        group.is_unreleased(member.member_id, topic_id, partition)
        for topic_id, partitions in group.target.get(member.member_id, {}).items()
        for partition in partitions
    )


def _request_rejoin(draft: Draft, member: ConsumerMember) -> None:
    """Start the member's rebalance timeout for the join. Further calls do not extend it."""
    if member.member_id in draft.group.join_deadlines:
        return
    deadline = draft.now_ms + member.info.rebalance_timeout_ms
    draft.effects += [
        Arm(join_timer(draft.group_id, member.member_id), deadline),
        SetJoinDeadline(draft.group_id, member.member_id, deadline),
    ]


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ConsumerMember:
    if instance_id is not None:
        member = checks.static_member(group, instance_id, member_id)
    elif member_id in group.members:
        member = group.members[member_id]
    else:
        raise checks.unknown_member(group, member_id)
    if not member.is_classic:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the member uses the consumer protocol")
    return member


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if member.current.epoch != generation:
        raise ApiError(
            ErrorCode.ILLEGAL_GENERATION, f"the member is in epoch {member.current.epoch}"
        )


# ---- leave ----


def leave(
    draft: Draft,
    request: LeaveGroupRequest,
    context: GroupContext,
    waiter: Waiter[LeaveGroupResponse],
) -> Decision:
    """Remove members of either protocol: an operator may remove any member."""
    rows = []
    leaving: dict[str, ConsumerMember] = {}
    for row in classic_leave.members_of(request, context.version):
        error = ErrorCode.NONE
        try:
            member = _leaving(draft.group, row)
            leaving[member.member_id] = member
        except ApiError as api_error:
            error = ErrorCode.of(api_error.code)
        rows.append(classic_leave.member_response(row, error))
    fence_or_downgrade(draft, list(leaving.values()))
    draft.effects.append(Reply(waiter, classic_leave.response(rows, context.version)))
    return draft.decision()


def _leaving(group: ConsumerGroup, row: MemberIdentity) -> ConsumerMember:
    if row.group_instance_id is None:
        if row.member_id not in group.members:
            raise checks.unknown_member(group, row.member_id)
        return group.members[row.member_id]
    existing = group.static_member(row.group_instance_id)
    member_id = row.member_id or (existing.member_id if existing is not None else "")
    return checks.static_member(group, row.group_instance_id, member_id)
