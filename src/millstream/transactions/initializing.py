"""InitProducerId with a transactional id: who may begin, and under which producer id and epoch.

v3 lets a producer name itself and go on after an error (KIP-360); v6 takes part in two-phase commit (KIP-939).
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
    """A request that has been found sound."""

    timeout_ms: int
    expected: Producer | None
    keep_prepared: bool


def intent_of(request: InitProducerIdRequest, settings: TransactionSettings) -> Intent:
    """What is asked for; raises ApiError where it may not be."""
    expected = _expected(request)
    if not request.transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    two_phase = request.enable_two_phase_commit
    _check_two_phase(request, settings)
    if not two_phase and not 0 < request.transaction_timeout_ms <= settings.transaction_max_timeout_ms:
        raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    timeout_ms = NO_TIMEOUT_MS if two_phase else request.transaction_timeout_ms
    return Intent(timeout_ms, expected, request.keep_prepared_txn)


def _expected(request: InitProducerIdRequest) -> Producer | None:
    """The producer that wants to go on; id and epoch come together or not at all."""
    nameless = (request.producer_id == NO_PRODUCER_ID, request.producer_epoch == NO_PRODUCER_EPOCH)
    if all(nameless):
        return None
    if any(nameless):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a producer id needs an epoch, and an epoch an id")
    return Producer(request.producer_id, request.producer_epoch)


def _check_two_phase(request: InitProducerIdRequest, settings: TransactionSettings) -> None:
    """The flags of KIP-939 are served or refused, never ignored."""
    enabled = settings.transaction_two_phase_commit_enable
    if request.enable_two_phase_commit and not enabled:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is not enabled")
    served = enabled and settings.transaction_version >= EPOCH_PER_TRANSACTION
    if request.keep_prepared_txn and not served:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "prepared transactions cannot be kept")


def check(metadata: TransactionMetadata, expected: Producer | None, last_epoch: int) -> None:
    """Whether a producer may begin, or begin again, now."""
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _is_current(metadata, expected, last_epoch):
        raise ApiError(ErrorCode.PRODUCER_FENCED)


def _is_current(metadata: TransactionMetadata, expected: Producer, last_epoch: int) -> bool:
    """KIP-360: the producer names its present epoch, or it repeats a request whose answer it never saw."""
    client = metadata.client
    rolled_over = expected.id == metadata.previous_producer_id and exhausted(expected.epoch)
    return (expected.id == client.id or rolled_over) and expected.epoch in (client.epoch, last_epoch)


def is_retry(metadata: TransactionMetadata, expected: Producer | None, last_epoch: int) -> bool:
    """The bump was done already. A new producer would have reset ``last_epoch``, so nobody else is in between."""
    return expected is not None and expected.epoch == last_epoch != metadata.client.epoch


def needs_producer_id(metadata: TransactionMetadata, expected: Producer | None, last_epoch: int) -> bool:
    return exhausted(metadata.client.epoch) and not is_retry(metadata, expected, last_epoch)


def next_producer(
    metadata: TransactionMetadata, expected: Producer | None, last_epoch: int, fresh_id: int | None
) -> Producer:
    """Whom the producer is from now on."""
    if is_retry(metadata, expected, last_epoch):
        return metadata.client
    if not exhausted(metadata.client.epoch):
        return Producer(metadata.client.id, metadata.client.epoch + 1)
    assert fresh_id is not None, "a roll-over needs a producer id"
    return Producer(fresh_id, 0)


def next_last_epoch(metadata: TransactionMetadata, expected: Producer | None, last_epoch: int) -> int:
    """The epoch to remember for a retry: none once a producer came that did not name itself."""
    if expected is None:
        return NO_PRODUCER_EPOCH
    return last_epoch if is_retry(metadata, expected, last_epoch) else metadata.client.epoch
