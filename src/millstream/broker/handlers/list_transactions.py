"""ListTransactions: those of every shard that this broker leads, filtered by state, producer, duration and pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError
from millstream.transactions import listing
from millstream.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    try:
        parts = await broker.coordinators.transactions.everywhere(
            lambda shard, waiter, now_ms: shard.decide_list_transactions(request, waiter, now_ms=now_ms)
        )
        listing.check(request)  # also where there is no shard to check it
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    return listing.merged(parts)
