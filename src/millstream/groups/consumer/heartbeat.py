"""ConsumerGroupHeartbeat: join (epoch 0), stay alive, change the subscription, get an assignment.

A heartbeat without changes writes and copies nothing: it is by far the most frequent request of
such groups.
"""

from __future__ import annotations

from millstream.core.decisions import Arm, Decision, Reply, Waiter
from millstream.core.errors import ApiError
from millstream.core.regex import compiled
from millstream.groups.consumer import checks
from millstream.groups.consumer.draft import Draft, Environment
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.member import (
    JOIN_EPOCH,
    ConsumerMember,
    Info,
    Owned,
    names_of,
    session_timer,
)
from millstream.groups.shard_state import GroupContext
from millstream.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)


def rejection(waiter: Waiter[ConsumerGroupHeartbeatResponse], error: ApiError) -> Decision:
    response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    return Decision(effects=(Reply(waiter, response),))


def decide(
    env: Environment,
    draft: Draft,
    request: ConsumerGroupHeartbeatRequest,
    context: GroupContext,
    waiter: Waiter[ConsumerGroupHeartbeatResponse],
) -> Decision:
    """Decide about a heartbeat; raise ApiError if it is invalid.

    The draft is of the existing group, of a new group, or of one converted from a classic group.
    """
    checks.check_room(draft.group, request.member_id, request.instance_id, env.settings)
    member_id = request.member_id or env.state.new_id()
    member = _find(draft, request, member_id)
    if _changes_nothing(env, draft, member, request, context):
        return _stay_alive(env, draft, member, waiter)
    before = draft.group.preferred_assignor(env.assignors)
    info = _updated(member.info, request, context)
    changed = _subscribe(draft, member, info)
    assignor_changed = draft.group.preferred_assignor(env.assignors) != before
    draft.refresh(bump=changed or assignor_changed)
    draft.assign()
    claimed = names_of(request.topic_partitions) if request.topic_partitions is not None else None
    draft.reconcile(member_id, claimed, subscription_changed=changed)
    draft.check_size()
    return _respond(env, draft, member, request, waiter)


def _stay_alive(
    env: Environment,
    draft: Draft,
    member: ConsumerMember,
    waiter: Waiter[ConsumerGroupHeartbeatResponse],
) -> Decision:
    settings = env.settings
    session = session_timer(draft.group_id, member.member_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms(draft.group_id),
    )
    deadline = draft.now_ms + settings.session_timeout_ms(draft.group_id)
    return Decision((), (Arm(session, deadline), Reply(waiter, response)))


def _changes_nothing(
    env: Environment,
    draft: Draft,
    member: ConsumerMember,
    request: ConsumerGroupHeartbeatRequest,
    context: GroupContext,
) -> bool:
    group, info = draft.group, member.info
    return (
        request.member_epoch > JOIN_EPOCH
        and member.current.is_reconciled_to(group.assignment_epoch)
        and group.epoch == group.assignment_epoch
        and group.checked_version == env.topics.version
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and info.classic is None
        and info.client_id == context.client_id
        and info.client_host == context.client_host
        and not (group.patterns and draft.regexes_are_due())
    )


# ---- member lookup ----


def _find(draft: Draft, request: ConsumerGroupHeartbeatRequest, member_id: str) -> ConsumerMember:
    """Return the existing or a new member. A static member may replace its predecessor."""
    group, joins = draft.group, request.member_epoch == JOIN_EPOCH
    if request.instance_id is not None:
        return _find_static(draft, request, member_id)
    member = group.members.get(member_id)
    if member is None:
        if not joins:
            raise checks.unknown_member(group, member_id)
        return ConsumerMember(member_id)
    checks.check_epoch(member, request)
    return member


def _find_static(
    draft: Draft, request: ConsumerGroupHeartbeatRequest, member_id: str
) -> ConsumerMember:
    group, joins = draft.group, request.member_epoch == JOIN_EPOCH
    assert request.instance_id is not None
    existing = group.static_member(request.instance_id)
    if not joins:
        existing = checks.static_member(group, request.instance_id, member_id)
        checks.check_epoch(existing, request)
        return existing
    if existing is None:
        return group.members.get(member_id, ConsumerMember(member_id))
    if existing.member_id == member_id and not existing.is_classic and existing.current.epoch >= 0:
        # The same process joins again, after a lost response or a fenced epoch.
        return existing
    checks.check_released(existing, request.instance_id)
    return draft.replace_static(existing, member_id)


# ---- subscription ----


def _updated(info: Info, request: ConsumerGroupHeartbeatRequest, context: GroupContext) -> Info:
    """Return the info of the member; null fields of the request keep their values."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return Info(
        instance_id=request.instance_id if request.instance_id is not None else info.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else info.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        topics=frozenset(names) if names is not None else info.topics,
        regex=pattern if pattern is not None else info.regex,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else info.rebalance_timeout_ms,
        assignor=request.server_assignor if request.server_assignor is not None else info.assignor,
    )


def _subscribe(draft: Draft, member: ConsumerMember, info: Info) -> bool:
    """Update the member and return whether its subscription has changed."""
    if info.regex != member.info.regex and info.regex and info.regex not in draft.group.patterns:
        compiled(info.regex)
    draft.update(member.member_id, info)
    draft.drop_unused_regexes()
    return info.topics != member.info.topics or info.regex != member.info.regex


# ---- response ----


def _respond(
    env: Environment,
    draft: Draft,
    before: ConsumerMember,
    request: ConsumerGroupHeartbeatRequest,
    waiter: Waiter[ConsumerGroupHeartbeatResponse],
) -> Decision:
    """Respond to the member.

    The assignment is included if the member joins, if it sends all fields (as it must after an
    error), or if the assignment has changed.
    """
    member = draft.group.members[before.member_id]
    draft.arm_session(member)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        heartbeat_interval_ms=env.settings.heartbeat_interval_ms(draft.group_id),
    )
    if (
        request.member_epoch == JOIN_EPOCH
        or _is_full(request)
        or member.current.assigned != before.current.assigned
    ):
        response.assignment = _assignment(member.current.assigned)
    draft.effects.append(Reply(waiter, response))
    return draft.decision()


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    subscribes = names is not None or pattern is not None
    return (
        request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None
    )


def _assignment(assigned: Owned) -> Assignment:
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(
                topic_id=topic_id, partitions=sorted(rows)
            )
            for topic_id, rows in sorted(assigned.items())
        ]
    )


def new_group(env: Environment, group_id: str, now_ms: int) -> Draft:
    return Draft(env, ConsumerGroup(group_id), now_ms)
