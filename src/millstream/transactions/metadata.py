"""The metadata of one transactional id, and its state transitions.

Every transition is a function from one value to the next. The table in ``states`` lists the valid
transitions. Producer epochs only grow, up to 32766 for clients. 32767 is reserved for fencing.
After that the client gets a new producer id with epoch 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millstream.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from millstream.transactions.states import (
    COMPLETED_BY,
    PREDECESSORS,
    IllegalTransition,
    TransactionState,
)

MAX_EPOCH = 32767
NO_START = -1
# Timeout of a transaction with two-phase commit (KIP-939): an external coordinator decides its
# outcome, so it never times out.
NO_TIMEOUT_MS = 2**31 - 1
# First level of transaction.version with an epoch for each transaction (KIP-890).
EPOCH_PER_TRANSACTION = 2

# Shared: a separate empty set would be a third of the memory of an idle id.
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class Producer(NamedTuple):
    """The producer id and epoch of a request."""

    id: int
    epoch: int


def exhausted(epoch: int) -> bool:
    """Return whether clients can get no higher epoch with the same producer id."""
    return epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The durable state of a transactional id, with the fields of its record."""

    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    last_update_ms: int
    start_ms: int = NO_START
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    # The previous producer id: a retry across a rollover still carries it.
    previous_producer_id: int = NO_PRODUCER_ID
    # Id and epoch of the client from the next transaction on, if its producer id changes.
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_transaction_version: int = 0

    @property
    def kept(self) -> bool:
        """Whether a prepared transaction has outlived its client (KIP-939).

        The new client already has the next epoch; the records of the transaction have the old one.
        """
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def client(self) -> Producer:
        """The producer id and epoch that requests must carry."""
        if self.kept:
            return Producer(self.next_producer_id, self.next_producer_epoch)
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def commits(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def deadline_ms(self) -> int:
        """The last millisecond of an ongoing transaction."""
        return self.start_ms + self.timeout_ms

    @property
    def has_deadline(self) -> bool:
        return self.state is TransactionState.ONGOING and self.timeout_ms != NO_TIMEOUT_MS

    def transition(self, state: TransactionState, **changes: Any) -> TransactionMetadata:
        """Return the metadata in the next state, or raise IllegalTransition."""
        if self.state not in PREDECESSORS[state]:
            raise IllegalTransition(self.state, state)
        changes.setdefault("previous_producer_id", self.client.id)
        return replace(self, state=state, **changes)


def created(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """Return the first metadata of a transactional id."""
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=0,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        last_update_ms=now_ms,
        previous_producer_id=producer_id,
    )


def initialized(
    before: TransactionMetadata, producer: Producer, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """A producer starts with this id and epoch, and no open transaction."""
    return before.transition(
        TransactionState.EMPTY,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        timeout_ms=timeout_ms,
        partitions=NO_PARTITIONS,
        start_ms=NO_START,
        last_update_ms=now_ms,
    )


def kept_for(
    before: TransactionMetadata, client: Producer, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """The ongoing transaction stays open, and a new client takes it over."""
    return before.transition(
        TransactionState.ONGOING,
        next_producer_id=client.id,
        next_producer_epoch=client.epoch,
        timeout_ms=timeout_ms,
        last_update_ms=now_ms,
    )


def joined(
    before: TransactionMetadata,
    partitions: Iterable[TopicPartition],
    client_version: int,
    now_ms: int,
) -> TransactionMetadata:
    """Add partitions; the first of them start the transaction."""
    return before.transition(
        TransactionState.ONGOING,
        partitions=before.partitions.union(partitions),
        start_ms=before.start_ms if before.state is TransactionState.ONGOING else now_ms,
        last_update_ms=now_ms,
        client_transaction_version=client_version,
    )


def prepared(
    before: TransactionMetadata,
    *,
    commit: bool,
    client_version: int,
    fresh_id: int | None,
    now_ms: int,
) -> TransactionMetadata:
    """Decide the outcome. ``fresh_id`` is required if ``needs_producer_id`` returns True."""
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    bumps = client_version >= EPOCH_PER_TRANSACTION
    following = _bumped(before.client, fresh_id) if bumps else before.client
    # Markers carry the epoch after that of the records, so that partitions reject late records.
    epoch = (
        min(before.producer_epoch + 1, MAX_EPOCH) if bumps or before.kept else before.producer_epoch
    )
    rolls_over = following.id != before.client.id
    return before.transition(
        state,
        producer_epoch=epoch,
        next_producer_id=following.id if before.kept or rolls_over else NO_PRODUCER_ID,
        next_producer_epoch=following.epoch if before.kept else NO_PRODUCER_EPOCH,
        start_ms=before.start_ms if before.state in _OPEN else now_ms,
        last_update_ms=now_ms,
        client_transaction_version=client_version,
    )


_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)


def _bumped(client: Producer, fresh_id: int | None) -> Producer:
    if not exhausted(client.epoch):
        return Producer(client.id, client.epoch + 1)
    assert fresh_id is not None, "a rollover needs a producer id"
    return Producer(fresh_id, 0)


def needs_producer_id(before: TransactionMetadata, client_version: int) -> bool:
    """Return whether the end of the transaction uses up the last epoch of the producer id."""
    return client_version >= EPOCH_PER_TRANSACTION and exhausted(before.client.epoch)


def fenced(
    before: TransactionMetadata, server_version: int, fresh_id: int | None, now_ms: int
) -> TransactionMetadata:
    """Abort the ongoing transaction with an epoch that its producer does not have."""
    if fence_version(before, server_version) >= EPOCH_PER_TRANSACTION:
        version = EPOCH_PER_TRANSACTION
        return prepared(
            before, commit=False, client_version=version, fresh_id=fresh_id, now_ms=now_ms
        )
    epoch = min(before.producer_epoch + 1, MAX_EPOCH)
    epoch_fenced = before.transition(TransactionState.PREPARE_EPOCH_FENCE, producer_epoch=epoch)
    return prepared(epoch_fenced, commit=False, client_version=0, fresh_id=None, now_ms=now_ms)


def fence_version(before: TransactionMetadata, server_version: int) -> int:
    """Return the transaction.version whose rules apply when the coordinator aborts.

    A kept transaction exists only under transaction.version 2, and ends by its rules.
    """
    return EPOCH_PER_TRANSACTION if before.kept else server_version


def completed(before: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Complete a transaction whose markers are all durable.

    The client continues with its next id or epoch.
    """
    producer = Producer(before.producer_id, before.producer_epoch)
    if before.kept:
        producer = before.client
    elif before.next_producer_id != NO_PRODUCER_ID:
        producer = Producer(before.next_producer_id, 0)
    return before.transition(
        COMPLETED_BY[before.state],
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        # The producer id with which the client ended the transaction: a retry of that request
        # carries it (KIP-890, KIP-939).
        previous_producer_id=before.previous_producer_id if before.kept else before.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        partitions=NO_PARTITIONS,
        last_update_ms=now_ms,
    )
