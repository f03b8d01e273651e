"""EndTxn: commit or abort a transaction. The response comes when the decision is durable.

The coordinator then writes the markers.

* v2: PRODUCER_FENCED. Older clients get INVALID_PRODUCER_EPOCH (KIP-588).
* v5: the producer gets a new epoch with each end, in the response (transaction.version 2, KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.transactions import answers
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices


async def handle(
    services: TransactionServices, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse:
    try:
        response: EndTxnResponse = await services.transactions.call(
            request.transactional_id,
            lambda shard, waiter, now_ms: shard.decide_end_txn(
                request, context.version, waiter, now_ms=now_ms
            ),
        )
    except ApiError as error:
        return answers.end_txn(error.code, context.version)
    return response
