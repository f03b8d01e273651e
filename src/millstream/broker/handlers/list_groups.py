"""ListGroups: the groups of every shard that this broker leads.

* v4: filter by state (KIP-518).
* v5: filter by type, classic or consumer (KIP-848).
"""

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
# Not the name of any state or type.
_UNKNOWN = "?"


async def handle(
    services: GroupServices, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    # Normalized once for all shards.
    request.states_filter = await in_slices(_names(request.states_filter))
    request.types_filter = await in_slices(_names(request.types_filter))
    client = group_context(context)
    try:
        responses = await services.groups.list_all(
            lambda ids: (
                lambda shard, waiter, now_ms: shard.decide_list(
                    request, client, waiter, now_ms=now_ms, group_ids=ids
                )
            )
        )
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=[group for response in responses for group in response.groups])


def _names(filters: list[str]) -> Steps[list[str]]:
    """Return each filter once. One unknown name is enough to match nothing."""
    names: dict[str, None] = {}
    for name in filters:
        name = name.strip().lower()
        names[name if name in _KNOWN else _UNKNOWN] = None
        yield
    return list(names)
