"""AddOffsetsToTxn: the partition that holds a group's offsets joins a transaction.

* v2: PRODUCER_FENCED. Older clients get INVALID_PRODUCER_EPOCH (KIP-588).

Clients of transaction.version 2 do not send it: their TxnOffsetCommit joins by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError
from millstream.transactions import answers
from millstream.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices


async def handle(
    services: TransactionServices, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    try:
        offsets_partition = await services.groups.offsets_partition(request.group_id)
        response: AddOffsetsToTxnResponse = await services.transactions.call(
            request.transactional_id,
            lambda shard, waiter, now_ms: shard.decide_add_offsets(
                request, context.version, waiter, offsets_partition=offsets_partition, now_ms=now_ms
            ),
        )
    except ApiError as error:
        return answers.add_offsets(error.code, context.version)
    return response
