"""Decides about InitProducerId: a new id, the next epoch of a producer, an open transaction.

``initializing.py`` has the rules.
"""

from __future__ import annotations

from typing import Any

from millstream.core.decisions import Arm, Decision, Reply
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH
from millstream.transactions import answers, id_memory, initializing, metadata, outcomes, timers
from millstream.transactions.effects import (
    AllocateProducerId,
    IdsFull,
    InitContinuation,
    RememberEpoch,
)
from millstream.transactions.expiry import expire_ids
from millstream.transactions.metadata import NO_TIMEOUT_MS, TransactionMetadata
from millstream.transactions.shard_state import ShardState, reply
from millstream.transactions.states import TransactionState
from millstream.wire.messages.init_producer_id import InitProducerIdResponse


def decide(
    state: ShardState, continuation: InitContinuation, fresh_id: int | None, now_ms: int
) -> Decision:
    name = continuation.transactional_id
    try:
        intent = initializing.intent_of(continuation.request, state.settings)
        known = state.transactions.get(name)
        if known is None:
            return _create(state, continuation, intent, fresh_id, now_ms)
        initializing.check(known, intent.expected, state.last_epoch(name))
    except ApiError as error:
        return reply(
            continuation.waiter, answers.init_producer_id(error.code, continuation.version)
        )
    if known.state is not TransactionState.ONGOING:
        return _initialize(state, continuation, intent, known, fresh_id, now_ms)
    if intent.keep_prepared:
        return _keep(state, continuation, intent, known, fresh_id, now_ms)
    return _abort_open(state, continuation, known, fresh_id, now_ms)


def _create(
    state: ShardState,
    continuation: InitContinuation,
    intent: initializing.Intent,
    fresh_id: int | None,
    now_ms: int,
) -> Decision:
    name = continuation.transactional_id
    names, room = state.memory.oldest_idle(state.surplus(id_memory.cost_of(name)))
    if not room:
        return _reject(continuation, names, now_ms)
    if fresh_id is None:
        return Decision(effects=(AllocateProducerId(continuation),))
    new = metadata.created(fresh_id, intent.timeout_ms, now_ms)
    effects = (
        timers.arm_expiry(state.settings, now_ms),
        Reply(continuation.waiter, _initialized(new)),
    )
    return expire_ids(names) + Decision((state.record(name, new),), effects)


def _reject(continuation: InitContinuation, names: list[str], now_ms: int) -> Decision:
    """Reject a new id because the memory for ids is full.

    Clients retry. Ids that may expire do so now, to make room for the next attempt.
    """
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    effects: tuple[Any, ...] = (
        IdsFull(0, continuation.transactional_id),
        Reply(continuation.waiter, answers.init_producer_id(code, continuation.version)),
    )
    if names:
        effects = (Arm(timers.EXPIRY, now_ms), *effects)
    return expire_ids(names) + Decision(effects=effects)


def _initialize(
    state: ShardState,
    continuation: InitContinuation,
    intent: initializing.Intent,
    known: TransactionMetadata,
    fresh_id: int | None,
    now_ms: int,
) -> Decision:
    """Start the producer with a bumped epoch, if no transaction is open."""
    name = continuation.transactional_id
    last = state.last_epoch(name)
    if fresh_id is None and initializing.needs_producer_id(known, intent.expected, last):
        return Decision(effects=(AllocateProducerId(continuation),))
    producer = initializing.next_producer(known, intent.expected, last, fresh_id)
    new = metadata.initialized(known, producer, intent.timeout_ms, now_ms)
    remember = RememberEpoch(name, initializing.next_last_epoch(known, intent.expected, last))
    return Decision(
        (state.record(name, new),), (remember, Reply(continuation.waiter, _initialized(new)))
    )


def _abort_open(
    state: ShardState,
    continuation: InitContinuation,
    known: TransactionMetadata,
    fresh_id: int | None,
    now_ms: int,
) -> Decision:
    """Abort the open transaction first. The client retries until that is done."""
    if fresh_id is None and outcomes.fencing_needs_id(state, known):
        return Decision(effects=(AllocateProducerId(continuation),))
    response = answers.init_producer_id(ErrorCode.CONCURRENT_TRANSACTIONS, continuation.version)
    follow_up = (Reply(continuation.waiter, response),)
    return outcomes.fence(state, continuation.transactional_id, known, fresh_id, now_ms, follow_up)


def _keep(
    state: ShardState,
    continuation: InitContinuation,
    intent: initializing.Intent,
    known: TransactionMetadata,
    fresh_id: int | None,
    now_ms: int,
) -> Decision:
    """Keep the open transaction until the client sends its outcome (KIP-939).

    Older clients are fenced.
    """
    if fresh_id is None and initializing.needs_producer_id(known, None, NO_PRODUCER_EPOCH):
        return Decision(effects=(AllocateProducerId(continuation),))
    name = continuation.transactional_id
    client = initializing.next_producer(known, None, NO_PRODUCER_EPOCH, fresh_id)
    no_timeout = intent.timeout_ms == NO_TIMEOUT_MS
    new = metadata.kept_for(
        known, client, intent.timeout_ms if no_timeout else known.timeout_ms, now_ms
    )
    stop = (timers.disarm_deadline(name),) if no_timeout else ()
    clear_epoch = RememberEpoch(name, NO_PRODUCER_EPOCH)
    return Decision(
        (state.record(name, new),),
        (clear_epoch, *stop, Reply(continuation.waiter, _taken_over(new))),
    )


def _initialized(new: TransactionMetadata) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=new.producer_id, producer_epoch=new.producer_epoch)


def _taken_over(new: TransactionMetadata) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=new.client.id,
        producer_epoch=new.client.epoch,
        ongoing_txn_producer_id=new.producer_id,
        ongoing_txn_producer_epoch=new.producer_epoch,
    )
