"""ListTransactions: the transactions of every shard that this broker leads, filtered.

Filters are states and producer ids.

* v1: minimum duration (KIP-994).
* v2: a pattern of transactional ids (KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.ports.turns import Steps, in_slices
from millstream.transactions import listing
from millstream.transactions.states import BY_TITLE
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices


async def handle(
    services: TransactionServices, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    unknown = await in_slices(_split_state_filters(request))
    try:
        responses: list[ListTransactionsResponse] = await services.transactions.list_all(
            lambda ids: (
                lambda shard, waiter, now_ms: shard.decide_list_transactions(
                    request, waiter, now_ms=now_ms, transactional_ids=ids
                )
            )
        )
        # Also if this broker leads no shard that would check it.
        listing.check(request)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    response = listing.merged(responses)
    response.unknown_state_filters = unknown if not response.error_code else []
    return response


def _split_state_filters(request: ListTransactionsRequest) -> Steps[list[str]]:
    """Return the filters that name no state. The request keeps one of them, to match nothing."""
    known: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for title in request.state_filters:
        (known if title in BY_TITLE else unknown)[title] = None
        yield
    names = list(unknown)
    request.state_filters = [*known, *names[:1]]
    return names
