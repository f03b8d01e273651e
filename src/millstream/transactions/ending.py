"""EndTxn: the effect of a commit or an abort in each state.

- v0-4 (classic): all transactions of a producer share an epoch, so an end at the current epoch may
  be a retry.
- v5 (transaction.version 2, KIP-890): an end bumps the epoch. A retry carries the previous epoch.
"""

from __future__ import annotations

from enum import Enum

from millstream.core.errors import ApiError, ErrorCode
from millstream.transactions.joining import check_producer
from millstream.transactions.metadata import (
    EPOCH_PER_TRANSACTION,
    MAX_EPOCH,
    Producer,
    TransactionMetadata,
)
from millstream.transactions.states import PREPARED, TransactionState

_BUMPS_EPOCH = 5

COMMIT, ABORT = True, False


class Ending(Enum):
    """The effect of an EndTxn request."""

    PREPARE = "decide the outcome now"
    DONE = "already decided by an earlier attempt of this request"


_S = TransactionState
_Outcome = Ending | ErrorCode
_INVALID = ErrorCode.INVALID_TXN_STATE

# (state, commit or abort) -> outcome, for a request with the current epoch.
CLASSIC: dict[tuple[TransactionState, bool], _Outcome] = {
    (_S.EMPTY, COMMIT): _INVALID,
    (_S.EMPTY, ABORT): _INVALID,
    (_S.ONGOING, COMMIT): Ending.PREPARE,
    (_S.ONGOING, ABORT): Ending.PREPARE,
    (_S.PREPARE_COMMIT, COMMIT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_COMMIT, ABORT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_ABORT, COMMIT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_ABORT, ABORT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.COMPLETE_COMMIT, COMMIT): Ending.DONE,
    (_S.COMPLETE_COMMIT, ABORT): _INVALID,
    (_S.COMPLETE_ABORT, COMMIT): _INVALID,
    (_S.COMPLETE_ABORT, ABORT): Ending.DONE,
}

# The same under version 2. An abort is valid even if no transaction is open, and it bumps the epoch
# like any other.
CURRENT: dict[tuple[TransactionState, bool], _Outcome] = {
    (_S.EMPTY, COMMIT): _INVALID,
    (_S.EMPTY, ABORT): Ending.PREPARE,
    (_S.ONGOING, COMMIT): Ending.PREPARE,
    (_S.ONGOING, ABORT): Ending.PREPARE,
    (_S.COMPLETE_COMMIT, COMMIT): _INVALID,
    (_S.COMPLETE_COMMIT, ABORT): Ending.PREPARE,
    (_S.COMPLETE_ABORT, COMMIT): _INVALID,
    (_S.COMPLETE_ABORT, ABORT): Ending.PREPARE,
}

# The same with the previous epoch: the retry of an end whose response was lost. If it cannot be a
# retry, the producer is fenced.
RETRY: dict[tuple[TransactionState, bool], _Outcome] = {
    (_S.EMPTY, COMMIT): ErrorCode.PRODUCER_FENCED,
    (_S.EMPTY, ABORT): ErrorCode.PRODUCER_FENCED,
    (_S.ONGOING, COMMIT): ErrorCode.PRODUCER_FENCED,
    (_S.ONGOING, ABORT): ErrorCode.PRODUCER_FENCED,
    (_S.COMPLETE_COMMIT, COMMIT): Ending.DONE,
    (_S.COMPLETE_COMMIT, ABORT): _INVALID,
    (_S.COMPLETE_ABORT, COMMIT): _INVALID,
    (_S.COMPLETE_ABORT, ABORT): Ending.DONE,
}


def client_version(version: int) -> int:
    """Return the transaction.version of the client that sent this version of EndTxn."""
    return 2 if version >= _BUMPS_EPOCH else 0


def ending_of(
    metadata: TransactionMetadata, producer: Producer, commit: bool, version: int
) -> Ending:
    """Return the effect of a client's request; raise ApiError if it is invalid."""
    if version >= _BUMPS_EPOCH:
        outcome = _current_or_retry(metadata, producer)[metadata.state, commit]
    else:
        check_producer(metadata, producer)
        outcome = CLASSIC[metadata.state, commit]
    if isinstance(outcome, ErrorCode):
        raise ApiError(outcome)
    return outcome


def _current_or_retry(
    metadata: TransactionMetadata, producer: Producer
) -> dict[tuple[TransactionState, bool], _Outcome]:
    # This check comes first: after a producer id rollover the client already uses the next id,
    # which takes effect when the markers are written. Until then a retry and the opposite outcome
    # both get CONCURRENT_TRANSACTIONS.
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if producer == metadata.client:
        return CURRENT
    if _ended_under(metadata, producer):
        return RETRY
    other = producer.id != metadata.client.id
    raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING if other else ErrorCode.PRODUCER_FENCED)


def _ended_under(metadata: TransactionMetadata, producer: Producer) -> bool:
    """Return whether this producer ended the last transaction and got its current epoch by that.

    After a classic end the current epoch is that of the transaction itself, and the previous epoch
    belongs to a zombie. If the zombie got a success, it would continue with the epoch of its
    successor.
    """
    bumped = metadata.client_transaction_version >= EPOCH_PER_TRANSACTION
    before_bump = metadata.client == Producer(producer.id, producer.epoch + 1)
    return bumped and (before_bump or _before_roll_over(metadata, producer))


def _before_roll_over(metadata: TransactionMetadata, producer: Producer) -> bool:
    """Return whether the client's producer id follows this one, whose epochs were used up."""
    return (
        metadata.client.epoch == 0
        and metadata.client.id != producer.id
        and producer == (metadata.previous_producer_id, MAX_EPOCH - 1)
    )
