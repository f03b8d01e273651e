"""InitProducerId with a transactional id: checks, and the next producer id and epoch.

v3 lets a producer send its id and epoch to continue after an error (KIP-360). v6 supports two-phase
commit (KIP-939).
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millstream.transactions.metadata import (
    EPOCH_PER_TRANSACTION,
    NO_TIMEOUT_MS,
    Producer,
    TransactionMetadata,
    exhausted,
)
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.states import PREPARED
from millstream.wire.messages.init_producer_id import InitProducerIdRequest


@dataclass(frozen=True, slots=True)
class Intent:
    """A valid request."""

    timeout_ms: int
    expected: Producer | None
    keep_prepared: bool


def intent_of(request: InitProducerIdRequest, settings: TransactionSettings) -> Intent:
    """Return the validated request; raise ApiError if it is invalid."""
    expected = _expected(request)
    if not request.transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    two_phase = request.enable_two_phase_commit
    _check_two_phase(request, settings)
    if (
        not two_phase
        and not 0 < request.transaction_timeout_ms <= settings.transaction_max_timeout_ms
    ):
        raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    timeout_ms = NO_TIMEOUT_MS if two_phase else request.transaction_timeout_ms
    return Intent(timeout_ms, expected, request.keep_prepared_txn)


def _expected(request: InitProducerIdRequest) -> Producer | None:
    """Return the producer that wants to continue.

    Id and epoch must both be set or both be absent.
    """
    missing = (request.producer_id == NO_PRODUCER_ID, request.producer_epoch == NO_PRODUCER_EPOCH)
    if all(missing):
        return None
    if any(missing):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "producer id and producer epoch must be set together"
        )
    return Producer(request.producer_id, request.producer_epoch)


def _check_two_phase(request: InitProducerIdRequest, settings: TransactionSettings) -> None:
    """Support or reject the flags of KIP-939, but never ignore them."""
    enabled = settings.transaction_two_phase_commit_enable
    if request.enable_two_phase_commit and not enabled:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is not enabled"
        )
    supported = enabled and settings.transaction_version >= EPOCH_PER_TRANSACTION
    if request.keep_prepared_txn and not supported:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, "keeping prepared transactions is not supported"
        )


def check(metadata: TransactionMetadata, expected: Producer | None, last_epoch: int) -> None:
    """Raise ApiError if the producer may not start or continue now."""
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _is_current(metadata, expected, last_epoch):
        raise ApiError(ErrorCode.PRODUCER_FENCED)


def _is_current(metadata: TransactionMetadata, expected: Producer, last_epoch: int) -> bool:
    """Return whether the producer has the current epoch or retries a request (KIP-360).

    A retry is a request whose response the producer never received.
    """
    client = metadata.client
    rolled_over = expected.id == metadata.previous_producer_id and exhausted(expected.epoch)
    return (expected.id == client.id or rolled_over) and expected.epoch in (
        client.epoch,
        last_epoch,
    )


def is_retry(metadata: TransactionMetadata, expected: Producer | None, last_epoch: int) -> bool:
    """Return whether an earlier attempt of the request has already bumped the epoch.

    A new producer would have reset ``last_epoch``, so no other producer has started since.
    """
    return expected is not None and expected.epoch == last_epoch != metadata.client.epoch


def needs_producer_id(
    metadata: TransactionMetadata, expected: Producer | None, last_epoch: int
) -> bool:
    return exhausted(metadata.client.epoch) and not is_retry(metadata, expected, last_epoch)


def next_producer(
    metadata: TransactionMetadata, expected: Producer | None, last_epoch: int, fresh_id: int | None
) -> Producer:
    """Return the producer id and epoch to use from now on."""
    if is_retry(metadata, expected, last_epoch):
        return metadata.client
    if not exhausted(metadata.client.epoch):
        return Producer(metadata.client.id, metadata.client.epoch + 1)
    assert fresh_id is not None, "a rollover needs a producer id"
    return Producer(fresh_id, 0)


def next_last_epoch(
    metadata: TransactionMetadata, expected: Producer | None, last_epoch: int
) -> int:
    """Return the epoch to remember for a retry, or -1 if the producer did not send its epoch."""
    if expected is None:
        return NO_PRODUCER_EPOCH
    return last_epoch if is_retry(metadata, expected, last_epoch) else metadata.client.epoch
