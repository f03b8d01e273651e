"""InitProducerId: a fresh id for an idempotent producer; id and epoch of a transactional id, fencing whoever had it before.

v3 lets a producer ask for a bumped epoch (KIP-360), v4 tells PRODUCER_FENCED, v6 takes part in two-phase commit (KIP-939).
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
        # As Apache Kafka does, before it is asked who coordinates: the same is said about it everywhere.
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
    halves = (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH)
    # Apache Kafka overlooks the flags here; there is nothing that they could mean.
    if halves or request.enable_two_phase_commit or request.keep_prepared_txn:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    # KIP-360: without a transactional id a bumped epoch would mean nothing, a fresh id does the same.
    return InitProducerIdResponse(producer_id=await services.producer_ids.next_id(), producer_epoch=0)
