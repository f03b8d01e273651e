"""EndTxn: commit or abort; answered when the outcome is durable, the markers follow. From v5 with the next epoch (KIP-890)."""

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
