"""Timers of transactions: the deadline of each open one, and the next expiry of unused ids.

All timers fire at multiples of an interval from the settings. Many shards therefore wake up
together, and arming a timer twice changes nothing.
"""

from __future__ import annotations

from millstream.core.decisions import Arm, Disarm, TimerKey
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.settings import TransactionSettings

EXPIRY: TimerKey = ("expiry",)
_DEADLINE = "deadline"


def deadline_key(transactional_id: str) -> TimerKey:
    return (_DEADLINE, transactional_id)


def transactional_id_of(key: TimerKey) -> str | None:
    """Return the transactional id of a deadline timer, or None for another timer."""
    if isinstance(key, tuple) and len(key) == 2 and key[0] == _DEADLINE:
        return str(key[1])
    return None


def arm_deadline(
    transactional_id: str, metadata: TransactionMetadata, settings: TransactionSettings, now_ms: int
) -> Arm:
    """Arm the timer for the deadline of a transaction.

    If the clock of the previous coordinator was ahead of this one, the transaction started in the
    future. Its deadline is then at most one timeout from now.
    """
    interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    deadline_ms = min(metadata.deadline_ms, now_ms + metadata.timeout_ms)
    return Arm(deadline_key(transactional_id), _after(deadline_ms, interval_ms))


def retry_deadline(transactional_id: str, settings: TransactionSettings, now_ms: int) -> Arm:
    interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    return Arm(deadline_key(transactional_id), _after(now_ms, interval_ms))


def disarm_deadline(transactional_id: str) -> Disarm:
    return Disarm(deadline_key(transactional_id))


def arm_expiry(settings: TransactionSettings, now_ms: int) -> Arm:
    return Arm(
        EXPIRY, _after(now_ms, settings.transaction_remove_expired_transaction_cleanup_interval_ms)
    )


def _after(time_ms: int, interval_ms: int) -> int:
    """Return the first multiple of the interval after a time."""
    return (time_ms // interval_ms + 1) * interval_ms


def overdue(metadata: TransactionMetadata, now_ms: int) -> bool:
    """Return whether a transaction has timed out, when its timer fires.

    If its start is still in the future, it was set by another clock, and the timeout has passed.
    """
    return metadata.has_deadline and (metadata.deadline_ms < now_ms or metadata.start_ms > now_ms)
