"""The decision of a coordinator: records to persist, and effects to perform once they are durable.

Decisions are values. The host (``cluster/coordinators/host.py``) applies the records, appends them
in one batch, and performs the effects when the high watermark has passed them. So no response or
request is sent that a crash could undo.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from millstream.core.errors import ErrorCode

# The error of a failed append as a client of a coordinator expects it.
APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
# A timer of a shard, e.g. ("session", group, member).
TimerKey = Hashable

Response = TypeVar("Response")
_Accepted = TypeVar("_Accepted", contravariant=True)


class Waiter(Protocol[_Accepted]):
    """Receives the response to a request.

    The host creates it (a future) and resolves it; a shard only passes it on. Its type ties a
    request to its response: a decision may answer many requests, of several APIs, so the type of
    the response belongs here and not to the decision.
    """

    def done(self) -> bool: ...
    def set_result(self, result: _Accepted, /) -> None: ...


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A record of a coordinator's log; a null value is a tombstone.

    Key and value are declared messages (``wire.schema.Struct``).
    """

    key: Any
    value: Any | None


@dataclass(frozen=True, slots=True)
class Reply(Generic[Response]):
    """Send a response."""

    to: Waiter[Response]
    response: Response


@dataclass(frozen=True, slots=True)
class Arm:
    """Call ``decide_timeout(key)`` at a time, instead of an earlier timer with this key."""

    key: TimerKey
    at_ms: int


@dataclass(frozen=True, slots=True)
class Disarm:
    """Cancel a timer."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class TransactionalAppend:
    """Marks records that belong to a producer's open transaction (offsets committed in it)."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to append together or not at all, then effects to perform in order."""

    records: tuple[CoordinatorRecord, ...] = ()
    effects: tuple[Any, ...] = ()
    transactional: TransactionalAppend | None = None

    def __add__(self, other: Decision) -> Decision:
        assert self.transactional is None and other.transactional is None
        return Decision(self.records + other.records, self.effects + other.effects)


NOTHING = Decision()
