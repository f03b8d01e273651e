"""AddPartitionsToTxn: partitions join a transaction; from v4 many transactions at once, also only verified (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.transactions import answers
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


async def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    asked = answers.transactions_of(request, context.version)
    results = [await _one(broker, context.version, transaction) for transaction in asked]
    return answers.add_partitions(results, context.version)


async def _one(
    broker: Broker, version: int, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    unknown = {
        tp for tp in answers.partitions_of(transaction) if not broker.replicas.exists(tp.topic, tp.partition)
    }
    if unknown:
        # All of them or none: the known ones are told that nothing was attempted.
        codes = {
            tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
            for tp in answers.partitions_of(transaction)
        }
        return answers.partition_results(transaction, codes)
    try:
        result: AddPartitionsToTxnResult = await broker.coordinators.transactions.call(
            transaction.transactional_id,
            lambda shard, waiter, now_ms: shard.decide_add_partitions(
                transaction, version, waiter, now_ms=now_ms
            ),
        )
    except ApiError as error:
        return answers.partitions_result(transaction, error.code, version)
    return result
