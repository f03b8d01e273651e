"""Transactional produce: how a batch is checked and joins its transaction before it is appended.

The first batch of a producer opens a transaction in its partition. Until a marker ends it, no
``read_committed`` reader gets past that batch. Two things must never happen:

* A *hanging transaction*: a late batch opens a transaction that the coordinator does not know, or
  has ended. No marker will come, and readers wait for ever.
* A batch in the *wrong transaction*: a late batch of an aborted transaction is appended to the next
  one, and committed with it; or a batch is acknowledged although its transaction lacks its records.

So the partition's leader asks the coordinator before a batch opens a transaction (KIP-890). A batch
passes these steps:

1. **The request.** It has one transactional id, so all its transactional batches must be of one
   producer. Without a transactional id, a transactional batch is rejected.
2. **Does it open a transaction?** (``opens_transaction``) If the partition has an open transaction
   of this producer id and epoch, the batch belongs to it, and only step 4 follows. A lower epoch
   than the partition has seen is fenced with INVALID_PRODUCER_EPOCH. Otherwise the partition's
   producer state registers a ``Verification``, the *guard*.
3. **The coordinator is asked** (``join``), once for all such partitions of the request. Up to v11
   the client has announced its partitions with AddPartitionsToTxn, and the coordinator only
   verifies that. From v12 on (transaction.version 2) the partitions join with this question. Its
   errors are converted to those that the client's version knows (``transactions/verification.py``).
   A joining producer does not wait for the markers of its previous transaction. While they are
   being written (CONCURRENT_TRANSACTIONS), asking again here is cheaper than having the client send
   the records again. It ends after ``add.partitions.to.txn.retry.backoff.max.ms``.
4. **Append with the guard.** The log takes the first batch only if its guard is still registered. A
   marker that was written since the question has removed it: the transaction that the coordinator
   confirmed has ended, and the batch gets INVALID_TXN_STATE. Only a guard that belongs to the
   marker's own epoch stays, because with transaction.version 2 this is the next transaction.

**Order.** The records are copied and the request is held during step 3, so later requests of the
connection cannot overtake it (``net/connection.py``). A retry over a new connection can. Therefore
a guard keeps the lowest sequence that waits behind it, and a batch with a higher sequence is
rejected with OUT_OF_ORDER_SEQUENCE_NUMBER. Batches behind a rejected one are rejected as well
(``cluster/replicas/pending_sequences.py``): a client treats an acknowledgement as cumulative.

**Duplicates** are recognised by epoch and sequences, before the guard is checked, and get the
original offset. A sequence identifies a batch only within its transaction. librdkafka reuses the
sequences of an aborted batch that was still in flight, so a batch is a duplicate only of a batch of
the open transaction. One that repeats sequences of an ended transaction gets UNKNOWN_PRODUCER_ID,
and the client aborts and continues with a new epoch (``log/producers/state.py``).

**Epochs.** With transaction.version 2 each transaction has a new epoch, and a late batch is fenced
by it. All the rules above remain necessary for older clients, which keep their epoch.

``transaction.partition.verification.enable=false`` skips steps 2 and 3 for clients that announce
their partitions. TxnOffsetCommit uses the same guard for the partition of the group's offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, NamedTuple

from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.producers.state import Verification
from millstream.transactions.verification import Operation, operation_of_produce
from millstream.wire.produce_codec import ProduceRequest, TopicKey
from millstream.wire.records.batch import BatchHeader, CorruptBatch, parse_header
from millstream.wire.records.layout import (
    BASE_SEQUENCE_AT,
    FLAGS_AT,
    HEADER_SIZE,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from millstream.broker.services import ProduceServices

# Producer id and epoch of a batch.
_PRODUCER = slice(PRODUCER_ID_AT, BASE_SEQUENCE_AT)

# A partition of a request: topic name or id, and index.
PartitionKey = tuple[TopicKey, int]
# The guard to append with, or the coordinator's error.
Joined = dict[PartitionKey, Verification | ErrorCode]


class OpeningBatch(NamedTuple):
    """A batch that opens a transaction in its partition."""

    key: PartitionKey
    partition: Partition
    header: BatchHeader
    guard: Verification


def has_several_producers(request: ProduceRequest) -> bool:
    """Return whether the transactional batches of a request are of different producers."""
    producers = {
        bytes(records[_PRODUCER])
        for _, data in request.topics
        for _, records in data
        if records is not None and len(records) >= HEADER_SIZE and _is_transactional(records)
    }
    return len(producers) > 1


def opens_transaction(
    partition: Partition, records: memoryview, version: int, now_ms: int
) -> Verification | None:
    """Return the guard of a batch that opens a transaction in its partition, or None.

    Raise ApiError if its epoch is fenced.
    """
    if version < 3 or not records[FLAGS_AT] & TRANSACTIONAL:
        return None
    operation = operation_of_produce(version)
    if operation.verify_only and not partition.online_log.verify_transactions:
        return None  # transaction.partition.verification.enable=false
    header = header_of(records)
    return partition.online_log.producer_state.start_verification(
        header.producer_id,
        header.base_sequence,
        header.producer_epoch,
        supports_epoch_bump=operation is Operation.JOIN,
        now_ms=now_ms,
    )


async def join(
    services: ProduceServices,
    transactional_id: str,
    version: int,
    opening_batches: Callable[[Container[PartitionKey]], list[OpeningBatch]],
) -> Joined:
    """Ask the coordinator about the batches that open a transaction.

    ``opening_batches`` returns those whose partitions have no result yet.
    """
    joined: Joined = {}
    operation = operation_of_produce(version)
    config, loop = services.config, asyncio.get_running_loop()
    until = loop.time() + config.integer("add.partitions.to.txn.retry.backoff.max.ms") / 1000
    while batches := opening_batches(joined):
        header = batches[0].header
        codes = await services.transactions.verify(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            [batch.partition.tp for batch in batches],
            verify_only=operation.verify_only,
        )
        for batch in batches:
            joined[batch.key] = codes[batch.partition.tp] or batch.guard
        busy = [b.key for b in batches if joined[b.key] is ErrorCode.CONCURRENT_TRANSACTIONS]
        if not busy or operation.verify_only or loop.time() >= until:
            break
        for key in busy:
            del joined[key]
        await asyncio.sleep(config.integer("add.partitions.to.txn.retry.backoff.ms") / 1000)
    return joined


def header_of(records: memoryview) -> BatchHeader:
    try:
        return parse_header(records)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None


def _is_transactional(records: memoryview) -> bool:
    """Return whether a batch is part of a transaction and names its producer."""
    return bool(records[FLAGS_AT] & TRANSACTIONAL) and records[PRODUCER_ID_AT] < 0x80
