"""Asking again. While a leader, a coordinator or the controller is being elected, requests are
refused or connections end; a moment later all is well.

``Patience`` repeats what failed for such a reason until the caller's time is over, and then says what was tried and what was met
last. Every call of ``Admin`` goes through it, and so does whoever uses ``Protocol.patiently``.

Two things are not waited for. A cluster that never answered: an address is wrong or nothing runs
there, which a person wants to know at once. And what only sounds as if it would pass: a topic that
does not exist is retriable in Kafka's table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from millstream.client.errors import BrokerUnreachable, ClientError
from millstream.core.errors import ErrorCode

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
# A library that has asked a broker waits for that one though it has died meanwhile: the first tries
# are short.
FIRST_LIMIT_S = 2.0
LAST_LIMIT_S = 10.0

# Somebody else has it now, or will in a moment: ask again.
MOVING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
# What a fail-over also shows to whoever administers a cluster.
PASSING = MOVING | {
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
# After these nobody knows whether the request was carried out.
_UNKNOWN_OUTCOME = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)

WHAT_NEXT = "see which brokers are up with `millstream doctor`, or wait longer (--timeout, timeout_s)"


class Patience:
    """How long one client waits for what passes. ``met`` once there was somebody at one of the
    addresses of the cluster; ``look_closer`` finds out, when it is given up, why something failed.
    """

    def __init__(
        self, timeout_s: float, look_closer: Callable[[ClientError, str], ClientError] | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self.met = False
        self._look_closer = look_closer

    def persist(
        self,
        attempt: Callable[[float], T],
        *,
        doing: str = "",
        done: Callable[[ClientError], T] | None = None,
    ) -> T:
        """The result of the first try that succeeds; each is told how many seconds it may take.

        A try without an answer may have been carried out all the same. ``done`` is asked about a
        refusal that follows one: if that is the trace of our own work, it returns the result, else
        it raises the refusal again.
        """
        deadline_s = time.monotonic() + self.timeout_s
        pause_s, limit_s, tried, unsure = FIRST_PAUSE_S, FIRST_LIMIT_S, 0, False
        while True:
            tried += 1
            left_s = max(deadline_s - time.monotonic(), FIRST_PAUSE_S)
            try:
                found = attempt(min(limit_s, left_s))
                self.met = True
                return found
            except ClientError as error:
                if not self._may_pass(error):
                    if unsure and done is not None and not error.final:
                        return done(error)
                    raise
                if time.monotonic() + pause_s > deadline_s:
                    raise self._given_up(error, doing, tried) from None
                unsure = unsure or leaves_open(error)
            time.sleep(pause_s)
            pause_s, limit_s = min(pause_s * 2, LAST_PAUSE_S), min(limit_s * 2, LAST_LIMIT_S)

    def _may_pass(self, error: ClientError) -> bool:
        if error.final:
            return False
        if isinstance(error, BrokerUnreachable):
            return self.met
        self.met = self.met or error.code is not None  # a refusal is an answer too
        return error.code in PASSING

    def _given_up(self, error: ClientError, doing: str, tried: int) -> ClientError:
        """The last error, which also says what was tried. Whoever waits further out does not begin
        again.
        """
        if self._look_closer is not None:
            error = self._look_closer(error, doing)
        error.final = True
        if tried > 1:
            if isinstance(error, BrokerUnreachable) and doing and doing not in error.message:
                error.message = f"cannot {doing}: {error.message}"
            error.message += f" (tried {tried} times within {self.timeout_s:.0f} s)"
        error.hint = error.hint or WHAT_NEXT
        return error


def leaves_open(error: ClientError) -> bool:
    """Whether the request may have been carried out although it failed."""
    return isinstance(error, BrokerUnreachable) or error.code in _UNKNOWN_OUTCOME
