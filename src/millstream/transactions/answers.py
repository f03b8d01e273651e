"""Responses of the transaction APIs, with the error codes that each client version understands."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from millstream.core.errors import ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.end_txn import EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdResponse
from millstream.wire.schema import Struct

_SINGLE = 3

# API -> first version whose clients know PRODUCER_FENCED (KIP-588). Older clients get
# INVALID_PRODUCER_EPOCH instead.
_KNOWS_FENCED: dict[type[Struct], int] = {
    InitProducerIdResponse: 4,
    AddPartitionsToTxnResponse: 2,
    AddOffsetsToTxnResponse: 2,
    EndTxnResponse: 2,
}


def _for_version(api: type[Struct], code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and version < _KNOWS_FENCED[api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def init_producer_id(code: ErrorCode, version: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=_for_version(InitProducerIdResponse, code, version),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )


def end_txn(code: ErrorCode, version: int) -> EndTxnResponse:
    return EndTxnResponse(error_code=_for_version(EndTxnResponse, code, version))


def add_offsets(code: ErrorCode, version: int) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=_for_version(AddOffsetsToTxnResponse, code, version))


# ---- AddPartitionsToTxn: v0-3 carry one transaction, v4+ many ----


def transactions_of(
    request: AddPartitionsToTxnRequest, version: int
) -> list[AddPartitionsToTxnTransaction]:
    """Return the transactions of a request.

    The shard of its transactional id decides about each of them.
    """
    if version > _SINGLE:
        return request.transactions
    return [
        AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def partitions_of(transaction: AddPartitionsToTxnTransaction) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index)
        for topic in transaction.topics
        for index in topic.partitions
    ]


def partitions_result(
    transaction: AddPartitionsToTxnTransaction, code: ErrorCode, version: int
) -> AddPartitionsToTxnResult:
    """Return a result with the same error code for every partition."""
    code = _for_version(AddPartitionsToTxnResponse, code, version)
    return partition_results(transaction, dict.fromkeys(partitions_of(transaction), code))


def partition_results(
    transaction: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResult:
    """Return a result with an error code for each partition.

    A partition without a code gets OPERATION_NOT_ATTEMPTED: one bad partition rejects all of them.
    """
    steps = partition_results_steps(transaction, codes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: AddPartitionsToTxnResult = end.value
            return result


def partition_results_steps(
    transaction: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, ErrorCode]
) -> Generator[None, None, AddPartitionsToTxnResult]:
    """Build the result of ``partition_results`` in steps, for very many partitions."""
    default = ErrorCode.OPERATION_NOT_ATTEMPTED
    result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
    for topic in transaction.topics:
        rows: list[AddPartitionsToTxnPartitionResult] = []
        result.topic_results.append(
            AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=rows)
        )
        for index in topic.partitions:
            code = codes.get(TopicPartition(topic.name, index), default)
            rows.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            )
            yield
    return result


def add_partitions(
    results: list[AddPartitionsToTxnResult], version: int
) -> AddPartitionsToTxnResponse:
    """Return the response to a request from the results of its transactions."""
    if version > _SINGLE:
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    (only,) = results
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=only.topic_results)
