"""InitProducerId: a producer id and epoch.

For a transactional id, earlier producers are fenced, and an open transaction is aborted.

* v3: a producer may request the next epoch of its id (KIP-360).
* v4: PRODUCER_FENCED. Older clients get INVALID_PRODUCER_EPOCH (KIP-588).
* v6: two-phase commit (KIP-939). It is only offered with ``transaction.two.phase.commit.enable``.

Different from Kafka: two-phase commit without a transactional id gets INVALID_REQUEST. Kafka
ignores these fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millstream.transactions import answers
from millstream.transactions.initializing import intent_of
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices


async def handle(
    services: TransactionServices, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    try:
        if request.transactional_id is None:
            return await _idempotent(services, request)
        # As in Kafka, before the coordinator is looked up, so that all brokers respond alike.
        intent_of(request, services.transactions.settings)
        response: InitProducerIdResponse = await services.transactions.call(
            request.transactional_id,
            lambda shard, waiter, now_ms: shard.decide_init_producer_id(
                request, context.version, waiter, now_ms=now_ms
            ),
        )
    except ApiError as error:
        return answers.init_producer_id(error.code, context.version)
    return response


async def _idempotent(
    services: TransactionServices, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    incomplete = (request.producer_id == NO_PRODUCER_ID) != (
        request.producer_epoch == NO_PRODUCER_EPOCH
    )
    if incomplete or request.enable_two_phase_commit or request.keep_prepared_txn:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    # KIP-360: without a transactional id, a new id serves as well as a new epoch.
    return InitProducerIdResponse(
        producer_id=await services.producer_ids.next_id(), producer_epoch=0
    )
