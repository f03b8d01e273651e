"""ListGroups: the groups of every shard that this broker leads; filters by state (v4) and type (v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.groups import group_context
from millstream.core.errors import ApiError
from millstream.groups.classic.group import KIND as CLASSIC
from millstream.groups.classic.states import State as ClassicState
from millstream.groups.consumer.group import KIND as CONSUMER
from millstream.groups.consumer.group import GroupState as ConsumerState
from millstream.ports.turns import Steps, in_slices
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from millstream.broker.services import GroupServices

_KNOWN = frozenset(
    name.lower()
    for name in (
        *(state.value for state in ClassicState),
        *(state.value for state in ConsumerState),
        CLASSIC,
        CONSUMER,
    )
)
# No state or type is called so.
_UNKNOWN = "?"


async def handle(
    services: GroupServices, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    # Once for all shards.
    request.states_filter = await in_slices(_names(request.states_filter))
    request.types_filter = await in_slices(_names(request.types_filter))
    who = group_context(context)
    try:
        parts = await services.groups.list_all(
            lambda ids: (
                lambda shard, waiter, now_ms: shard.decide_list(
                    request, who, waiter, now_ms=now_ms, group_ids=ids
                )
            )
        )
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=[group for part in parts for group in part.groups])


def _names(filters: list[str]) -> Steps[list[str]]:
    """Each once; of those that no state or type has, one is enough to match nothing."""
    names: dict[str, None] = {}
    for name in filters:
        name = name.strip().lower()
        names[name if name in _KNOWN else _UNKNOWN] = None
        yield
    return list(names)
