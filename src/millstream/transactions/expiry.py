"""Decides which transactional ids expire: by time, or early because their memory is full."""

from __future__ import annotations

from millstream.core.decisions import NOTHING, Arm, Decision
from millstream.core.types import NO_PRODUCER_EPOCH
from millstream.transactions import timers
from millstream.transactions.effects import IdsFull, RememberEpoch
from millstream.transactions.records import tombstone_of
from millstream.transactions.shard_state import ShardState


def expire(state: ShardState, now_ms: int) -> Decision:
    """Expire ids that have been idle for transactional.id.expiration.ms, some at a time."""
    names, more = timers.expired(state.transactions, state.settings, now_ms)
    if not names and state.surplus() > 0:
        return _expire_early(state, now_ms)
    clear_epochs = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
    rearm: tuple[Arm, ...] = ()
    if more or state.surplus() > 0:
        rearm = (Arm(timers.EXPIRY, now_ms),)
    elif len(names) < len(state.transactions):
        rearm = (timers.arm_expiry(state.settings, now_ms),)
    return Decision(tuple(tombstone_of(name) for name in names), (*clear_epochs, *rearm))


def _expire_early(state: ShardState, now_ms: int) -> Decision:
    """Expire a slice of the surplus ids, after loading or after the limit was lowered."""
    names, enough = state.memory.oldest_idle(state.surplus())
    wait = enough or not names
    rearm = timers.arm_expiry(state.settings, now_ms) if wait else Arm(timers.EXPIRY, now_ms)
    return expire_ids(names) + Decision(effects=(rearm,))


def expire_ids(names: list[str]) -> Decision:
    """Expire ids because of memory, with the same records as those that expire by time."""
    if not names:
        return NOTHING
    clear_epochs = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
    return Decision(tuple(map(tombstone_of, names)), (*clear_epochs, IdsFull(len(names))))
