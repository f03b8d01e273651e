"""TxnOffsetCommit: offsets that take effect when the transaction commits.

The transaction coordinator is asked first, as for a produce (``produce.py``).

* v0-v4: it verifies that the group's offsets are part of the transaction.
* v2: COORDINATOR_LOAD_IN_PROGRESS. Older clients treat it as fatal and get
  COORDINATOR_NOT_AVAILABLE (KAFKA-7296). Also the leader epoch of the offset.
* v3: the member is checked (KIP-447).
* v4: clients know TRANSACTION_ABORTABLE. Older clients get INVALID_TXN_STATE (KIP-890).
* v5: the offsets join the transaction with this request (transaction.version 2, KIP-890).
* v6: topics by id, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH. Older clients get ILLEGAL_GENERATION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.broker.requests.chunks import add_response, chunks, is_large
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
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import TransactionalOffsetServices

# Clients before this version treat COORDINATOR_LOAD_IN_PROGRESS as fatal (KAFKA-7296).
_KNOWS_LOADING = 2


async def handle(
    services: TransactionalOffsetServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not is_large(request.topics, "partitions"):
        return await _commit(services, context, request)
    # Nothing takes effect before the transaction commits, so it need not be one batch of records.
    pace, merged = Pace(), TxnOffsetCommitResponse()
    for chunk in chunks(request.topics, "partitions"):
        values = {field.name: getattr(request, field.name) for field in request.fields}
        part = TxnOffsetCommitRequest(**(values | {"topics": chunk.topics}))
        response = await _commit(services, context, part)
        add_response(merged.topics, response.topics, chunk.continues)
        await pace.rest()
    return merged


async def _commit(
    services: TransactionalOffsetServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    groups, version = services.groups, context.version
    if not commit.any_partition_exists(request, version, groups.topics):
        return commit.rejected_transactional(request, version, groups.topics)
    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        offsets_partition = await groups.offsets_partition(request.group_id)
        guard = await _verify(services, context, request, offsets_partition)
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


async def _verify(
    services: TransactionalOffsetServices,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    offsets_partition: TopicPartition,
) -> Verification | None:
    """Return the guard to append with, once the coordinator has agreed.

    None if the partition already knows the transaction.
    """
    operation = operation_of_txn_offset_commit(context.version)
    try:
        log = services.replicas.leader(*offsets_partition).online_log
    except ApiError:
        raise ApiError(ErrorCode.NOT_COORDINATOR) from None
    if operation.verify_only and not log.verify_transactions:
        return None  # transaction.partition.verification.enable=false
    guard = log.producer_state.start_verification(
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
        [offsets_partition],
        verify_only=operation.verify_only,
    )
    if codes[offsets_partition]:
        raise ApiError(offset_commit_error(codes[offsets_partition], operation))
    return guard
