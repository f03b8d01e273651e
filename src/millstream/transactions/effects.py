"""What transaction decisions ask for, beyond answers and timers."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.decisions import Waiter
from millstream.core.types import TopicPartition
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the outcome into every partition, for ever if need be, then call ``decide_markers_written``.

    Markers of a shard that was dropped must be called off before the shard is loaded again: under ``transaction.version`` 0 and 1
    several transactions share an epoch, and a late marker would end the next one.
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
    """Get a fresh producer id, then call ``decide_producer_id(then, producer_id)``; None where none can be had."""

    then: InitContinuation | EndContinuation | TimeoutContinuation


@dataclass(frozen=True, slots=True)
class InitContinuation:
    """An InitProducerId that waits for a producer id."""

    request: InitProducerIdRequest
    version: int
    waiter: Waiter[InitProducerIdResponse]

    @property
    def transactional_id(self) -> str:
        """Return the id, which the request has: without one it never reaches a shard."""
        assert self.request.transactional_id is not None
        return self.request.transactional_id


@dataclass(frozen=True, slots=True)
class EndContinuation:
    """An EndTxn that uses up the last epoch and waits for the producer id after it."""

    request: EndTxnRequest
    version: int
    waiter: Waiter[EndTxnResponse]


@dataclass(frozen=True, slots=True)
class TimeoutContinuation:
    """An overdue transaction whose abort uses up the last epoch."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class IdsFull:
    """The memory for transactional ids is used up: tell the operator. ``refused`` is the id that found no room."""

    expired: int
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class RememberEpoch:
    """The shard's own: the epoch that the present producer had before its last bump; -1 when there is no such.

    Kafka's records do not hold it, so a retried InitProducerId with an epoch (KIP-360) is recognized until the coordinator moves.
    """

    transactional_id: str
    epoch: int
