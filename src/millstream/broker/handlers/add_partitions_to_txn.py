"""AddPartitionsToTxn: partitions join a transaction; from v4 many transactions at once, also only verified (KIP-890)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.control.image import INTERNAL_TOPICS
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.turns import Pace, in_slices
from millstream.transactions import answers
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from millstream.broker.services import TransactionServices

_FROM_CLIENTS = 3
# Transactions that are decided at the same time; each waits until its records are safe.
_AT_ONCE = 50


async def handle(
    services: TransactionServices, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    pace = Pace()
    asked = answers.transactions_of(request, context.version)
    results: list[AddPartitionsToTxnResult] = []
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        results += await asyncio.gather(*(_one(services, context.version, one, pace) for one in some))
        await pace.rest()
    return answers.add_partitions(results, context.version)


async def _one(
    services: TransactionServices, version: int, transaction: AddPartitionsToTxnTransaction, pace: Pace
) -> AddPartitionsToTxnResult:
    await _merge_topics(transaction, pace)
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in transaction.topics:
        for index in topic.partitions:
            tp = TopicPartition(topic.name, index)
            if code := _refusal(services, version, tp):
                codes[tp] = code
            await pace.rest()
    if codes:
        # All of them or none: the others are told that nothing was attempted.
        return await in_slices(answers.partition_results_steps(transaction, codes))
    try:
        result: AddPartitionsToTxnResult = await services.transactions.call(
            transaction.transactional_id,
            lambda shard, waiter, now_ms: shard.decide_add_partitions(
                transaction, version, waiter, now_ms=now_ms
            ),
        )
    except ApiError as error:
        return answers.partitions_result(transaction, error.code, version)
    return result


async def _merge_topics(transaction: AddPartitionsToTxnTransaction, pace: Pace) -> None:
    """Each topic once, and each of its partitions: a transaction has a set of them."""
    partitions: dict[str, dict[int, None]] = {}
    for topic in transaction.topics:
        partitions.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
        await pace.rest()
    transaction.topics = []
    for name, indexes in partitions.items():
        transaction.topics.append(AddPartitionsToTxnTopic(name=name, partitions=list(indexes)))
        await pace.rest()


def _refusal(services: TransactionServices, version: int, tp: TopicPartition) -> ErrorCode:
    """NONE where the partition may join. Clients (up to v3) add internal topics in other ways."""
    if version <= _FROM_CLIENTS and tp.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = services.image.topics.get(tp.topic)
    exists = topic is not None and tp.partition in topic.replicas
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
