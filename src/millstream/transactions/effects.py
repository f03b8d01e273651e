"""Effects of transaction decisions, other than replies and timers."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.decisions import Waiter
from millstream.core.types import TopicPartition
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the outcome into every partition, then call ``decide_markers_written``.

    The host retries until every partition has its marker. It must cancel the markers of a dropped
    shard before it loads the shard again. Under ``transaction.version`` 0 and 1 several
    transactions share an epoch, and a late marker would end the next transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


@dataclass(frozen=True, slots=True)
class AllocateProducerId:
    """Get a new producer id, then call ``decide_producer_id(continuation, producer_id)``.

    The producer id is None if none is available.
    """

    continuation: InitContinuation | EndContinuation | TimeoutContinuation


@dataclass(frozen=True, slots=True)
class InitContinuation:
    """An InitProducerId request that waits for a producer id."""

    request: InitProducerIdRequest
    version: int
    waiter: Waiter[InitProducerIdResponse]

    @property
    def transactional_id(self) -> str:
        """Return the id of the request. A request without one never reaches a shard."""
        assert self.request.transactional_id is not None
        return self.request.transactional_id


@dataclass(frozen=True, slots=True)
class EndContinuation:
    """An EndTxn request that uses up the last epoch and waits for the next producer id."""

    request: EndTxnRequest
    version: int
    waiter: Waiter[EndTxnResponse]


@dataclass(frozen=True, slots=True)
class TimeoutContinuation:
    """A timed-out transaction whose abort uses up the last epoch."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class IdsFull:
    """The memory for transactional ids is full: warn the operator.

    ``rejected`` is the new id for which there was no room.
    """

    expired: int
    rejected: str | None = None


@dataclass(frozen=True, slots=True)
class RememberEpoch:
    """Remember the epoch that the current producer had before its last bump; -1 for none.

    The shard performs this effect itself. Kafka's records do not hold this epoch. A retried
    InitProducerId with an epoch (KIP-360) is therefore recognized only until the coordinator
    changes.
    """

    transactional_id: str
    epoch: int
