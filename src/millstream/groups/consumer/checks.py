"""Checks of ConsumerGroupHeartbeat requests; each raises the ApiError that Kafka returns."""

from __future__ import annotations

from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from millstream.groups.settings import GroupSettings
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

# First version in which the client generates its member id.
_MEMBER_ID_REQUIRED = 1


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """Check a request without looking at its group."""
    epoch = request.member_epoch
    needs_id = version >= _MEMBER_ID_REQUIRED or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    _require(not needs_id or bool(request.member_id), "member id must not be empty")
    _require(bool(request.group_id), "group id must not be empty")
    _require(request.instance_id != "", "instance id must be null or not empty")
    _require(request.rack_id != "", "rack id must be null or not empty")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "member epoch -2 requires an instance id")
    _require(epoch >= STATIC_LEAVE_EPOCH, "member epoch must be at least -2")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        supported = ", ".join(assignors)
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"assignor {request.server_assignor} is not supported; supported are: {supported}",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    _require(request.rebalance_timeout_ms != -1, "a join must have a rebalance timeout")
    _require(request.topic_partitions == [], "a join must have an empty list of owned partitions")
    subscribes = (
        request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    )
    _require(subscribes, "a join must have a subscription")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def check_room(
    group: ConsumerGroup, member_id: str, instance_id: str | None, settings: GroupSettings
) -> None:
    """Raise if the group is full. A static member that rejoins keeps its place."""
    if instance_id is not None and instance_id in group.instances:
        return
    if len(group.members) >= settings.group_consumer_max_size and member_id not in group.members:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"the group already has the maximum of {settings.group_consumer_max_size} members",
        )


def check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """Raise if the epoch of the request is not valid.

    The previous epoch is valid while the member owns only assigned partitions: the response with
    the new epoch may have been lost.
    """
    epoch, current = request.member_epoch, member.current
    if epoch in (JOIN_EPOCH, current.epoch):
        return
    if (
        epoch == current.previous_epoch
        and epoch < current.epoch
        and _owns_only_assigned(member, request)
    ):
        return
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member is in epoch {current.epoch}, not {epoch}; it must give up its partitions and join again",
    )


def _owns_only_assigned(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    if request.topic_partitions is None:
        return False
    assigned = member.current.assigned
    return all(
        partition in assigned.get(row.topic_id, ())
        for row in request.topic_partitions
        for partition in row.partitions
    )


def unknown_member(group: ConsumerGroup, member_id: str) -> ApiError:
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of group {group.group_id}"
    )


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """Return the member with this instance id; raise if it has another member id."""
    existing = group.static_member(instance_id)
    if existing is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
    if existing.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"the instance id {instance_id} belongs to another member now",
        )
    return existing


def check_released(existing: ConsumerMember, instance_id: str) -> None:
    """Raise if the instance id is still in use.

    It is free once the member has left temporarily; a classic member leaves without saying so.
    """
    if not existing.is_classic and existing.current.epoch != STATIC_LEAVE_EPOCH:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"the instance id {instance_id} is in use by member {existing.member_id}",
        )


def group_not_found(group_id: str) -> ApiError:
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"consumer group {group_id} does not exist")
