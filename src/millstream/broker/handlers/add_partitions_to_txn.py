"""AddPartitionsToTxn: partitions join a transaction, or are verified to be part of it.

* v0-v3 are sent by clients, with one transaction. Internal topics are rejected: offsets join with
  AddOffsetsToTxn.
* v2: PRODUCER_FENCED. Older clients get INVALID_PRODUCER_EPOCH (KIP-588).
* v4 and later are sent by brokers: many transactions in one request, which may only be verified
  (KIP-890).

All partitions of a transaction join, or none.
"""

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
# Maximum number of transactions decided at the same time. Each waits until its records are durable.
_AT_ONCE = 50


async def handle(
    services: TransactionServices, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    pace = Pace()
    transactions = answers.transactions_of(request, context.version)
    results: list[AddPartitionsToTxnResult] = []
    for start in range(0, len(transactions), _AT_ONCE):
        chunk = transactions[start : start + _AT_ONCE]
        results += await asyncio.gather(*(_add(services, context.version, t, pace) for t in chunk))
        await pace.rest()
    return answers.add_partitions(results, context.version)


async def _add(
    services: TransactionServices,
    version: int,
    transaction: AddPartitionsToTxnTransaction,
    pace: Pace,
) -> AddPartitionsToTxnResult:
    await _merge_topics(transaction, pace)
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in transaction.topics:
        for index in topic.partitions:
            tp = TopicPartition(topic.name, index)
            if code := _rejection(services, version, tp):
                codes[tp] = code
            await pace.rest()
    if codes:
        # All of them or none: the others get OPERATION_NOT_ATTEMPTED.
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
    """Name each topic and each of its partitions once."""
    partitions: dict[str, dict[int, None]] = {}
    for topic in transaction.topics:
        partitions.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
        await pace.rest()
    transaction.topics = []
    for name, indexes in partitions.items():
        transaction.topics.append(AddPartitionsToTxnTopic(name=name, partitions=list(indexes)))
        await pace.rest()


def _rejection(services: TransactionServices, version: int, tp: TopicPartition) -> ErrorCode:
    """Return NONE if the partition may join. Clients (up to v3) may not add internal topics."""
    if version <= _FROM_CLIENTS and tp.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = services.image.topics.get(tp.topic)
    exists = topic is not None and tp.partition in topic.replicas
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
