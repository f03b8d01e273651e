"""When transactions are looked at again: the deadline of each open one, and the expiry of ids nobody uses.

Both fall on a grid of the interval that the settings name, so that many shards wake together and arming twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.decisions import Arm, Disarm, TimerKey
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.states import IDLE

EXPIRY: TimerKey = ("expiry",)
_DEADLINE = "deadline"
# Tombstones of one decision, in bytes of transactional ids: they share a batch, which max.message.bytes bounds.
_MOST_EXPIRED_BYTES = 256 * 1024


def deadline_key(transactional_id: str) -> TimerKey:
    return (_DEADLINE, transactional_id)


def transactional_id_of(key: TimerKey) -> str | None:
    """The id whose deadline this is; None for another timer."""
    if isinstance(key, tuple) and len(key) == 2 and key[0] == _DEADLINE:
        return str(key[1])
    return None


def arm_deadline(
    transactional_id: str, metadata: TransactionMetadata, settings: TransactionSettings, now_ms: int
) -> Arm:
    """A transaction whose coordinator before had a clock ahead of this one began in the future: nobody waits longer than its timeout
    for that."""
    interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    deadline_ms = min(metadata.deadline_ms, now_ms + metadata.timeout_ms)
    return Arm(deadline_key(transactional_id), _after(deadline_ms, interval_ms))


def retry_deadline(transactional_id: str, settings: TransactionSettings, now_ms: int) -> Arm:
    interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    return Arm(deadline_key(transactional_id), _after(now_ms, interval_ms))


def disarm_deadline(transactional_id: str) -> Disarm:
    return Disarm(deadline_key(transactional_id))


def arm_expiry(settings: TransactionSettings, now_ms: int) -> Arm:
    return Arm(EXPIRY, _after(now_ms, settings.transaction_remove_expired_transaction_cleanup_interval_ms))


def _after(time_ms: int, interval_ms: int) -> int:
    """The first point of the grid behind a time."""
    return (time_ms // interval_ms + 1) * interval_ms


def overdue(metadata: TransactionMetadata, now_ms: int) -> bool:
    """Asked when the timer has run: a start that is still in the future then is another clock's, and the timeout is over."""
    return metadata.has_deadline and (metadata.deadline_ms < now_ms or metadata.start_ms > now_ms)


def expired(
    transactions: Mapping[str, TransactionMetadata], settings: TransactionSettings, now_ms: int
) -> tuple[list[str], bool]:
    """The ids to forget now, and whether more of them are left for another turn."""
    before_ms = now_ms - settings.transactional_id_expiration_ms
    names: list[str] = []
    size = 0
    for name, metadata in transactions.items():
        if metadata.state in IDLE and metadata.last_update_ms <= before_ms:
            if size >= _MOST_EXPIRED_BYTES:
                return names, True
            names.append(name)
            size += len(name) * 4 + 32
    return names, False
