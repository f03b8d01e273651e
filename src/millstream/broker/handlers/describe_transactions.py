"""DescribeTransactions: state, producer and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.ports.turns import once_each
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices


async def handle(
    services: TransactionServices, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    states = await once_each(request.transactional_ids, lambda name: _describe(services, name))
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(services: TransactionServices, transactional_id: str) -> TransactionState:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    try:
        response: DescribeTransactionsResponse = await services.transactions.call(
            transactional_id,
            lambda shard, waiter, now_ms: shard.decide_describe_transactions(
                request, waiter, now_ms=now_ms
            ),
        )
    except ApiError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
    return response.transaction_states[0]
