"""Decides the outcome of transactions: by EndTxn, by fencing and by timeout.

``ending.py`` has the rules. An outcome is durable before a marker is sent.
"""

from __future__ import annotations

from typing import Any

from millstream.core.decisions import NOTHING, Decision, Reply
from millstream.core.errors import ApiError
from millstream.core.types import NO_PRODUCER_EPOCH
from millstream.transactions import answers, ending, metadata, timers
from millstream.transactions.effects import (
    AllocateProducerId,
    EndContinuation,
    RememberEpoch,
    SendMarkers,
    TimeoutContinuation,
)
from millstream.transactions.metadata import Producer, TransactionMetadata
from millstream.transactions.shard_state import ShardState, reply
from millstream.wire.messages.end_txn import EndTxnResponse


def end(
    state: ShardState, continuation: EndContinuation, fresh_id: int | None, now_ms: int
) -> Decision:
    """Decide about EndTxn. ``fresh_id`` is a new producer id, if the epochs of the old one are used
    up.
    """
    request = continuation.request
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        known = state.known(request.transactional_id)
        outcome = ending.ending_of(known, producer, request.committed, continuation.version)
    except ApiError as error:
        return reply(continuation.waiter, answers.end_txn(error.code, continuation.version))
    client_version = ending.client_version(continuation.version)
    if outcome is ending.Ending.DONE:
        return reply(continuation.waiter, _ended(known, client_version))
    if fresh_id is None and metadata.needs_producer_id(known, client_version):
        return Decision(effects=(AllocateProducerId(continuation),))
    new = metadata.prepared(
        known,
        commit=request.committed,
        client_version=client_version,
        fresh_id=fresh_id,
        now_ms=now_ms,
    )
    response = _ended(metadata.completed(new, now_ms), client_version)
    last = known.client.epoch if client_version >= metadata.EPOCH_PER_TRANSACTION else None
    return _prepare(
        state,
        request.transactional_id,
        known,
        new,
        last,
        now_ms,
        (Reply(continuation.waiter, response),),
    )


def fence(
    state: ShardState,
    name: str,
    known: TransactionMetadata,
    fresh_id: int | None,
    now_ms: int,
    follow_up: tuple[Any, ...],
) -> Decision:
    """Abort an ongoing transaction on the coordinator's initiative."""
    server_version = state.settings.transaction_version
    new = metadata.fenced(known, server_version, fresh_id, now_ms)
    bumps = metadata.fence_version(known, server_version) >= metadata.EPOCH_PER_TRANSACTION
    last = known.client.epoch if bumps else NO_PRODUCER_EPOCH
    return _prepare(state, name, known, new, last, now_ms, follow_up)


def fencing_needs_id(state: ShardState, known: TransactionMetadata) -> bool:
    version = metadata.fence_version(known, state.settings.transaction_version)
    return metadata.needs_producer_id(known, version)


def _prepare(
    state: ShardState,
    name: str,
    known: TransactionMetadata,
    new: TransactionMetadata,
    last_epoch: int | None,
    now_ms: int,
    follow_up: tuple[Any, ...],
) -> Decision:
    """Make the outcome durable; replies and markers follow after that."""
    remember = () if last_epoch is None else (RememberEpoch(name, last_epoch),)
    stop = (timers.disarm_deadline(name),) if known.has_deadline else ()
    decided = Decision((state.record(name, new),), (*remember, *stop, *follow_up))
    return decided + carry_out(state, name, new, now_ms)


def carry_out(state: ShardState, name: str, new: TransactionMetadata, now_ms: int) -> Decision:
    """Send the markers of a durable outcome; without partitions the transaction is complete."""
    if not new.partitions:
        return Decision((state.record(name, metadata.completed(new, now_ms)),))
    return Decision(effects=(_markers(state, name, new),))


def _markers(state: ShardState, name: str, new: TransactionMetadata) -> SendMarkers:
    return SendMarkers(
        transactional_id=name,
        producer_id=new.producer_id,
        producer_epoch=new.producer_epoch,
        coordinator_epoch=state.coordinator_epoch,
        commit=new.commits,
        partitions=tuple(sorted(new.partitions)),
        transaction_version=new.client_transaction_version,
    )


def time_out(state: ShardState, name: str, fresh_id: int | None, now_ms: int) -> Decision:
    """Abort an open transaction that is past its deadline."""
    known = state.transactions.get(name)
    if known is None or not known.has_deadline:
        return NOTHING
    if not timers.overdue(known, now_ms):
        return Decision(effects=(timers.arm_deadline(name, known, state.settings, now_ms),))
    if fresh_id is None and fencing_needs_id(state, known):
        # The timer runs again while the transaction is open, even if the allocation fails.
        rearm = timers.retry_deadline(name, state.settings, now_ms)
        return Decision(effects=(rearm, AllocateProducerId(TimeoutContinuation(name))))
    return fence(state, name, known, fresh_id, now_ms, ())


def _ended(known: TransactionMetadata, client_version: int) -> EndTxnResponse:
    if client_version < metadata.EPOCH_PER_TRANSACTION:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=known.client.id, producer_epoch=known.client.epoch)
