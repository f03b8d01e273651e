"""Retries while a leader, a coordinator or the controller is elected.

During an election requests fail or connections close; a moment later they succeed. ``Retries``
repeats such requests until the caller's timeout, and then reports the last error with the number of
attempts. Every call of ``Admin`` uses it, and so do callers of ``Protocol.patiently``.

Two kinds of errors are not retried. A cluster that never answered: the address is wrong or nothing
runs there, which the user should know at once. And errors that Kafka calls retriable but that do
not pass, such as a topic that does not exist.
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
# librdkafka waits for the response of a broker even if it has died: the first attempts are short.
FIRST_LIMIT_S = 2.0
LAST_LIMIT_S = 10.0

# Another broker has it now, or will in a moment: retry.
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
# Further errors of administrative requests during a failover.
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
# After these it is unknown whether the request was executed.
_UNKNOWN_OUTCOME = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)

GIVE_UP_HINT = (
    "see which brokers are up with `millstream doctor`, or wait longer (--timeout, timeout_s)"
)


class Retries:
    """The retries of one client.

    ``reached`` is True after any address of the cluster has answered. ``diagnose`` finds the
    cause of the last error when the client gives up.
    """

    def __init__(
        self, timeout_s: float, diagnose: Callable[[ClientError, str], ClientError] | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self.reached = False
        self._diagnose = diagnose

    def run(
        self,
        attempt: Callable[[float], T],
        *,
        doing: str = "",
        done: Callable[[ClientError], T] | None = None,
    ) -> T:
        """Return the result of the first attempt that succeeds; each gets a time limit.

        An attempt without a response may have been executed. ``done`` is called with an error that
        follows such an attempt. If the error is the effect of that attempt, ``done`` returns the
        result; otherwise it raises the error again.
        """
        deadline_s = time.monotonic() + self.timeout_s
        pause_s, limit_s, attempts, outcome_unknown = FIRST_PAUSE_S, FIRST_LIMIT_S, 0, False
        while True:
            attempts += 1
            remaining_s = max(deadline_s - time.monotonic(), FIRST_PAUSE_S)
            try:
                result = attempt(min(limit_s, remaining_s))
                self.reached = True
                return result
            except ClientError as error:
                if not self._may_pass(error):
                    if outcome_unknown and done is not None and not error.final:
                        return done(error)
                    raise
                if time.monotonic() + pause_s > deadline_s:
                    raise self._given_up(error, doing, attempts) from None
                outcome_unknown = outcome_unknown or outcome_unknown_after(error)
            time.sleep(pause_s)
            pause_s, limit_s = min(pause_s * 2, LAST_PAUSE_S), min(limit_s * 2, LAST_LIMIT_S)

    def _may_pass(self, error: ClientError) -> bool:
        if error.final:
            return False
        if isinstance(error, BrokerUnreachable):
            return self.reached
        self.reached = self.reached or error.code is not None  # an error response is a response too
        return error.code in PASSING

    def _given_up(self, error: ClientError, doing: str, attempts: int) -> ClientError:
        """Return the last error with the number of attempts.

        It is final, so that an enclosing ``run`` does not start over.
        """
        if self._diagnose is not None:
            error = self._diagnose(error, doing)
        error.final = True
        if attempts > 1:
            if isinstance(error, BrokerUnreachable) and doing and doing not in error.message:
                error.message = f"cannot {doing}: {error.message}"
            error.message += f" (tried {attempts} times within {self.timeout_s:.0f} s)"
        error.hint = error.hint or GIVE_UP_HINT
        return error


def outcome_unknown_after(error: ClientError) -> bool:
    """Return whether the request may have been executed although it failed."""
    return isinstance(error, BrokerUnreachable) or error.code in _UNKNOWN_OUTCOME
