"""EndTxn: what a commit or an abort means in each state.

v0-4 (classic): every transaction of a producer has the same epoch, so an end at the present epoch may be a retry.
v5 (transaction.version 2, KIP-890): an end bumps the epoch; a retry is known by the epoch before.
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
    """What an EndTxn leads to."""

    PREPARE = "the outcome is decided now"
    DONE = "it was decided before, for this very request"


_S = TransactionState
_Answer = Ending | ErrorCode
_WRONG = ErrorCode.INVALID_TXN_STATE

# (state, outcome) -> what follows. The epoch has been found to be the present one.
CLASSIC: dict[tuple[TransactionState, bool], _Answer] = {
    (_S.EMPTY, COMMIT): _WRONG,
    (_S.EMPTY, ABORT): _WRONG,
    (_S.ONGOING, COMMIT): Ending.PREPARE,
    (_S.ONGOING, ABORT): Ending.PREPARE,
    (_S.PREPARE_COMMIT, COMMIT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_COMMIT, ABORT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_ABORT, COMMIT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_ABORT, ABORT): ErrorCode.CONCURRENT_TRANSACTIONS,
    (_S.COMPLETE_COMMIT, COMMIT): Ending.DONE,
    (_S.COMPLETE_COMMIT, ABORT): _WRONG,
    (_S.COMPLETE_ABORT, COMMIT): _WRONG,
    (_S.COMPLETE_ABORT, ABORT): Ending.DONE,
}

# The same at the present epoch under version 2: an abort is fine where nothing is open, and costs an epoch like any other.
CURRENT: dict[tuple[TransactionState, bool], _Answer] = {
    (_S.EMPTY, COMMIT): _WRONG,
    (_S.EMPTY, ABORT): Ending.PREPARE,
    (_S.ONGOING, COMMIT): Ending.PREPARE,
    (_S.ONGOING, ABORT): Ending.PREPARE,
    (_S.COMPLETE_COMMIT, COMMIT): _WRONG,
    (_S.COMPLETE_COMMIT, ABORT): Ending.PREPARE,
    (_S.COMPLETE_ABORT, COMMIT): _WRONG,
    (_S.COMPLETE_ABORT, ABORT): Ending.PREPARE,
}

# And at the epoch before: the retry of an end whose answer was lost. Where it cannot be one, the producer is fenced.
RETRY: dict[tuple[TransactionState, bool], _Answer] = {
    (_S.EMPTY, COMMIT): ErrorCode.PRODUCER_FENCED,
    (_S.EMPTY, ABORT): ErrorCode.PRODUCER_FENCED,
    (_S.ONGOING, COMMIT): ErrorCode.PRODUCER_FENCED,
    (_S.ONGOING, ABORT): ErrorCode.PRODUCER_FENCED,
    (_S.COMPLETE_COMMIT, COMMIT): Ending.DONE,
    (_S.COMPLETE_COMMIT, ABORT): _WRONG,
    (_S.COMPLETE_ABORT, COMMIT): _WRONG,
    (_S.COMPLETE_ABORT, ABORT): Ending.DONE,
}


def client_version(version: int) -> int:
    """The transaction.version of the client behind a version of EndTxn."""
    return 2 if version >= _BUMPS_EPOCH else 0


def ending_of(metadata: TransactionMetadata, producer: Producer, commit: bool, version: int) -> Ending:
    """What a client's request leads to; raises ApiError where it may not be."""
    if version >= _BUMPS_EPOCH:
        answer = _current_or_retry(metadata, producer)[metadata.state, commit]
    else:
        check_producer(metadata, producer)
        answer = CLASSIC[metadata.state, commit]
    if isinstance(answer, ErrorCode):
        raise ApiError(answer)
    return answer


def _current_or_retry(
    metadata: TransactionMetadata, producer: Producer
) -> dict[tuple[TransactionState, bool], _Answer]:
    # First of all: after a roll-over the client already uses an id that takes effect when the markers are written. A retry
    # and the opposite outcome alike hear of the result when it is complete.
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if producer == metadata.client:
        return CURRENT
    if _ended_under(metadata, producer):
        return RETRY
    other = producer.id != metadata.client.id
    raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING if other else ErrorCode.PRODUCER_FENCED)


def _ended_under(metadata: TransactionMetadata, producer: Producer) -> bool:
    """The last transaction was this producer's, and its end made it the present one.

    After a classic end the present epoch is that of the transaction itself, and the one before belongs to a zombie: told of
    success, it would go on under the epoch of its successor.
    """
    bumped = metadata.client_transaction_version >= EPOCH_PER_TRANSACTION
    before_bump = metadata.client == Producer(producer.id, producer.epoch + 1)
    return bumped and (before_bump or _before_roll_over(metadata, producer))


def _before_roll_over(metadata: TransactionMetadata, producer: Producer) -> bool:
    """The last epoch of one producer id is followed by the first of the next."""
    return (
        metadata.client.epoch == 0
        and metadata.client.id != producer.id
        and producer == (metadata.previous_producer_id, MAX_EPOCH - 1)
    )
