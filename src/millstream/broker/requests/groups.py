"""Shared by the handlers of group requests: run a decision on the group's shard, and respond."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.authorized_operations import GROUP_OPERATIONS
from millstream.core.errors import ApiError, ErrorCode
from millstream.groups.shard_state import GroupContext
from millstream.ports.turns import once_each

if TYPE_CHECKING:
    from millstream.broker.services import ConsumerGroupServices, GroupServices
    from millstream.cluster.coordinators.groups import Decide

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def group_context(context: RequestContext) -> GroupContext:
    return GroupContext(
        context.version, context.client_id or "", f"/{context.connection.stream.peer_host}"
    )


def check_consumer_protocol(services: ConsumerGroupServices) -> None:
    """Raise unless ``group.version`` enables the protocol of KIP-848."""
    if services.image.feature_levels.get("group.version", 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled.")


def call_group(
    services: GroupServices,
    context: RequestContext,
    group_id: str,
    decide: Decide[_Request, _Response],
    request: _Request,
) -> Awaitable[_Response]:
    """Run ``decide`` on the group's shard.

    Raise ApiError if this broker does not coordinate the group.
    """
    return services.groups.call(group_id, decide, request, group_context(context))


def respond(
    services: GroupServices,
    context: RequestContext,
    group_id: str,
    decide: Decide[_Request, _Response],
    request: _Request,
    reject: Callable[[ApiError], _Response],
) -> _Response | Awaitable[_Response]:
    """Run ``decide`` on the group's shard, for the most frequent requests.

    Return the response if it is ready at once, without a task, or else an awaitable of it.
    ``reject`` converts an ApiError to a response.
    """
    try:
        response = services.groups.call(group_id, decide, request, group_context(context))
        return response.result() if response.done() else _await(response, reject)
    except ApiError as error:
        return reject(error)


async def describe_each(
    group_ids: Sequence[str], describe: Callable[[str], Awaitable[Any]], *, operations: bool
) -> list[Any]:
    """Describe each group once, however often it is named."""

    async def described(group_id: str) -> Any:
        group = await describe(group_id)
        if operations and not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
        return group

    return await once_each(group_ids, described)


async def _await(response: Future[_Response], reject: Callable[[ApiError], _Response]) -> _Response:
    try:
        return await response
    except ApiError as error:
        return reject(error)
