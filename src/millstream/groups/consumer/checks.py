"""What a ConsumerGroupHeartbeat must be like, and which member may send it. Every check raises the ApiError that Kafka answers."""

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

# From this version on the client makes up its member id.
_MEMBER_ID_REQUIRED = 1


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """What holds before any group is looked at."""
    epoch = request.member_epoch
    needs_id = version >= _MEMBER_ID_REQUIRED or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    _require(not needs_id or bool(request.member_id), "a member id is needed")
    _require(bool(request.group_id), "a group id is needed")
    _require(request.instance_id != "", "an instance id may be null but not empty")
    _require(request.rack_id != "", "a rack id may be null but not empty")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "only a static member can leave for a while")
    _require(epoch >= STATIC_LEAVE_EPOCH, "there is no such member epoch")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        offered = ", ".join(assignors)
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"assignor {request.server_assignor} is not offered here; there are: {offered}",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    _require(request.rebalance_timeout_ms != -1, "who joins must tell its rebalance timeout")
    _require(request.topic_partitions == [], "who joins cannot own partitions, and must say so")
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    _require(subscribes, "who joins must tell what it subscribes to")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def check_room(
    group: ConsumerGroup, member_id: str, instance_id: str | None, settings: GroupSettings
) -> None:
    """A static member that comes back takes no more room than it had."""
    if instance_id is not None and instance_id in group.instances:
        return
    if len(group.members) >= settings.group_consumer_max_size and member_id not in group.members:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"the group has its {settings.group_consumer_max_size} members already",
        )


def check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """The epoch before will do while the member owns nothing beyond its assignment: the answer with the new one may have got lost."""
    epoch, current = request.member_epoch, member.current
    if epoch in (JOIN_EPOCH, current.epoch):
        return
    if epoch == current.previous_epoch and epoch < current.epoch and _owns_only_assigned(member, request):
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
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of group {group.group_id}")


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """The member with this instance id, if it also has this member id."""
    existing = group.static_member(instance_id)
    if existing is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
    if existing.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID, f"the instance id {instance_id} belongs to another member now"
        )
    return existing


def check_released(existing: ConsumerMember, instance_id: str) -> None:
    """A static member's place is free once it has said that it goes for a while; a classic one never says so."""
    if not existing.is_classic and existing.current.epoch != STATIC_LEAVE_EPOCH:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"the instance id {instance_id} is in use by member {existing.member_id}",
        )


def group_not_found(group_id: str) -> ApiError:
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
