"""ListTransactions: those of every shard that this broker leads, filtered by state, producer, duration and pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError
from millstream.transactions import listing
from millstream.transactions.states import BY_TITLE
from millstream.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    states = list(dict.fromkeys(request.state_filters))
    unknown = [title for title in states if title not in BY_TITLE]
    # Once for all shards: an unknown state matches nothing, and so do many.
    request.state_filters = [title for title in states if title in BY_TITLE] + unknown[:1]
    try:
        parts = await broker.coordinators.transactions.everywhere(
            lambda shard, waiter, now_ms: shard.decide_list_transactions(request, waiter, now_ms=now_ms)
        )
        listing.check(request)  # also where there is no shard to check it
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    response = listing.merged(parts)
    response.unknown_state_filters = unknown if not response.error_code else []
    return response
