"""TxnOffsetCommit: offsets that count when the transaction commits, pending until its marker.

The transaction coordinator is asked first: up to v4 whether the group's offsets are part of the transaction, from v5 they join it
with this request (KIP-890). v3 checks the member (KIP-447).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import add_answer, chunks, is_large
from millstream.broker.requests.groups import group_context
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.groups.offsets import commit
from millstream.groups.shard import GroupShard
from millstream.log.producers.state import Verification
from millstream.ports.turns import Pace
from millstream.transactions.verification import (
    Operation,
    offset_commit_error,
    operation_of_txn_offset_commit,
)
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from millstream.broker.services import TransactionalOffsetServices

# Clients before this version take COORDINATOR_LOAD_IN_PROGRESS for a fatal error (KAFKA-7296).
_KNOWS_LOADING = 2


async def handle(
    services: TransactionalOffsetServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not is_large(request.topics, "partitions"):
        return await _commit(services, context, request)
    # Nothing of it counts before the transaction commits, so that it need not be one batch of records.
    pace, whole = Pace(), TxnOffsetCommitResponse()
    for chunk in chunks(request.topics, "partitions"):
        values = {field.name: getattr(request, field.name) for field in request.fields}
        some = TxnOffsetCommitRequest(**(values | {"topics": chunk.topics}))
        response = await _commit(services, context, some)
        add_answer(whole.topics, response.topics, chunk.continues)
        await pace.rest()
    return whole


async def _commit(
    services: TransactionalOffsetServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    groups, version = services.groups, context.version
    if not commit.any_partition_exists(request, version, groups.topics):
        return commit.rejected_transactional(request, version, groups.topics)
    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        where = await groups.offsets_partition(request.group_id)
        guard = await _verified(services, context, request, where)
        return await groups.call(
            request.group_id,
            GroupShard.decide_txn_offset_commit,
            request,
            group_context(context),
            guard=guard,
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _KNOWS_LOADING:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return commit.rejected_transactional(request, version, groups.topics, code)


async def _verified(
    services: TransactionalOffsetServices,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    where: TopicPartition,
) -> Verification | None:
    """The guard to append with, once the coordinator agreed; None where the transaction is known there already."""
    operation = operation_of_txn_offset_commit(context.version)
    try:
        journal = services.replicas.leader(where.topic, where.partition).online_log
    except ApiError:
        raise ApiError(ErrorCode.NOT_COORDINATOR) from None
    if operation.verify_only and not journal.verify_transactions:
        return None  # transaction.partition.verification.enable=false
    guard = journal.producer_state.start_verification(
        request.producer_id,
        -1,
        request.producer_epoch,
        supports_epoch_bump=operation is Operation.JOIN,
        now_ms=services.clock.now_ms(),
    )
    if guard is None:
        return None
    codes = await services.transactions.verify(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [where],
        verify_only=operation.verify_only,
    )
    if codes[where]:
        raise ApiError(offset_commit_error(codes[where], operation))
    return guard
