"""AddPartitionsToTxn: partitions join a transaction; from v4 many transactions at once, also only verified (KIP-890)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.control.image import INTERNAL_TOPICS
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.transactions import answers
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker

_FROM_CLIENTS = 3


async def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    asked = answers.transactions_of(request, context.version)
    results = await asyncio.gather(*(_one(broker, context.version, transaction) for transaction in asked))
    return answers.add_partitions(list(results), context.version)


async def _one(
    broker: Broker, version: int, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    refused = {
        tp: code for tp in answers.partitions_of(transaction) if (code := _refusal(broker, version, tp))
    }
    if refused:
        # All of them or none: the others are told that nothing was attempted.
        return answers.partition_results(transaction, refused)
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


def _refusal(broker: Broker, version: int, tp: TopicPartition) -> ErrorCode:
    """NONE where the partition may join. Clients (up to v3) add internal topics in other ways."""
    if version <= _FROM_CLIENTS and tp.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = broker.image.topics.get(tp.topic)
    exists = topic is not None and tp.partition in topic.replicas
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
