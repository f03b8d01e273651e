"""Decides which transactional ids expire: by time, or early because their memory is full."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.decisions import NOTHING, Arm, Decision
from millstream.core.types import NO_PRODUCER_EPOCH
from millstream.transactions import timers
from millstream.transactions.effects import IdsFull, RememberEpoch
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.records import tombstone_of
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard_state import ShardState
from millstream.transactions.states import IDLE

# Maximum bytes of transactional ids that one decision expires. Their tombstones share a batch,
# whose size max.message.bytes limits.
_MAX_EXPIRED_BYTES = 256 * 1024


def expire(state: ShardState, now_ms: int) -> Decision:
    """Expire ids that have been idle for transactional.id.expiration.ms, some at a time."""
    names, more = _expired(state.transactions, state.settings, now_ms)
    if not names and state.surplus() > 0:
        return _expire_early(state, now_ms)
    clear_epochs = tuple(RememberEpoch(name, NO_PRODUCER_EPOCH) for name in names)
    rearm: tuple[Arm, ...] = ()
    if more or state.surplus() > 0:
        rearm = (Arm(timers.EXPIRY, now_ms),)
    elif len(names) < len(state.transactions):
        rearm = (timers.arm_expiry(state.settings, now_ms),)
    return Decision(tuple(tombstone_of(name) for name in names), (*clear_epochs, *rearm))


def _expired(
    transactions: Mapping[str, TransactionMetadata], settings: TransactionSettings, now_ms: int
) -> tuple[list[str], bool]:
    """Return the ids that expire now, and whether more remain for another decision."""
    before_ms = now_ms - settings.transactional_id_expiration_ms
    names: list[str] = []
    size = 0
    for name, metadata in transactions.items():
        if metadata.state in IDLE and metadata.last_update_ms <= before_ms:
            if size >= _MAX_EXPIRED_BYTES:
                return names, True
            names.append(name)
            size += len(name) * 4 + 32
    return names, False


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
