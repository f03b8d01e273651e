"""What the handlers of group requests share: who asks, and how a decision of the group's shard becomes an answer."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from millstream.broker.authorized import GROUP_OPERATIONS
from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.shard_state import GroupContext
from millstream.ports.turns import once_each

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def group_context(context: RequestContext) -> GroupContext:
    return GroupContext(context.version, context.client_id or "", f"/{context.connection.stream.peer_host}")


def check_consumer_protocol(broker: Broker) -> None:
    """The protocol of KIP-848 is served from group.version 1 on."""
    if broker.image.feature_levels.get("group.version", 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled.")


async def ask(
    broker: Broker, context: RequestContext, group_id: str, method: str, request: Any, **more: Any
) -> Any:
    """Runs ``method`` of the group's shard; raises ApiError where this broker does not coordinate the group."""
    who = group_context(context)
    return await broker.coordinators.groups.call(
        group_id,
        lambda shard, waiter, now_ms: getattr(shard, method)(request, who, waiter, now_ms=now_ms, **more),
    )


def answer(
    broker: Broker,
    context: RequestContext,
    group_id: str,
    method: str,
    request: Any,
    refuse: Callable[[ApiError], Any],
) -> Any:
    """The same for the most frequent requests: without a task where the response is there at once, else an awaitable of it.
    An ApiError becomes what ``refuse`` makes of it."""
    who = group_context(context)
    try:
        response = broker.coordinators.groups.call(
            group_id,
            lambda shard, waiter, now_ms: getattr(shard, method)(request, who, waiter, now_ms=now_ms),
        )
        return response.result() if response.done() else _later(response, refuse)
    except ApiError as error:
        return refuse(error)


async def describe_each(
    group_ids: Sequence[str], describe: Callable[[str], Awaitable[Any]], *, operations: bool
) -> list[Any]:
    """Describe each group once however often it is named, with the authorized operations if asked."""

    async def described(group_id: str) -> Any:
        group = await describe(group_id)
        if operations and not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
        return group

    return await once_each(group_ids, described)


async def _later(response: Future[Any], refuse: Callable[[ApiError], Any]) -> Any:
    try:
        return await response
    except ApiError as error:
        return refuse(error)
