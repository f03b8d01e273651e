"""ListTransactions: those of every shard that this broker leads, filtered by state, producer, duration and pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.ports.turns import Steps, in_slices
from millstream.transactions import listing
from millstream.transactions.states import BY_TITLE
from millstream.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    unknown = await in_slices(_sort_out_states(request))
    try:
        parts = await broker.coordinators.transactions.list_all(
            lambda ids: (
                lambda shard, waiter, now_ms: shard.decide_list_transactions(
                    request, waiter, now_ms=now_ms, transactional_ids=ids
                )
            )
        )
        listing.check(request)  # also where there is no shard to check it
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    response = listing.merged(parts)
    response.unknown_state_filters = unknown if not response.error_code else []
    return response


def _sort_out_states(request: ListTransactionsRequest) -> Steps[list[str]]:
    """The filters that name no state, which the answer tells. The request keeps one of them: it matches nothing."""
    known: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for title in request.state_filters:
        (known if title in BY_TITLE else unknown)[title] = None
        yield
    names = list(unknown)
    request.state_filters = [*known, *names[:1]]
    return names
