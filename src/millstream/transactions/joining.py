"""AddPartitionsToTxn and AddOffsetsToTxn: check partitions that join a transaction.

Under transaction.version 2 produce requests and offset commits add their partitions themselves
(KIP-890). The same checks apply.
"""

from __future__ import annotations

from collections.abc import Collection

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.transactions.metadata import Producer, TransactionMetadata
from millstream.transactions.states import PREPARED, TransactionState

# First version of AddPartitionsToTxn that brokers send, for clients of transaction.version 2.
_FROM_BROKERS = 4


def client_version(version: int) -> int:
    """Return the transaction.version of the client for this version of AddPartitionsToTxn."""
    return 2 if version >= _FROM_BROKERS else 0


def check_id(transactional_id: str | None) -> None:
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")


def known(metadata: TransactionMetadata | None) -> TransactionMetadata:
    if metadata is None:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    return metadata


def check_producer(metadata: TransactionMetadata, producer: Producer) -> None:
    if metadata.client.id != producer.id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if metadata.client.epoch != producer.epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)


def check_may_join(metadata: TransactionMetadata, producer: Producer) -> None:
    # This check comes first: after a producer id rollover the client already uses the next id,
    # which takes effect when the markers are written.
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    check_producer(metadata, producer)
    _check_not_kept(metadata)


def _check_not_kept(metadata: TransactionMetadata) -> None:
    """Raise if the client has taken over a prepared transaction: it may only end it (KIP-939)."""
    if metadata.kept:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)


def all_joined(metadata: TransactionMetadata, partitions: Collection[TopicPartition]) -> bool:
    return metadata.state is TransactionState.ONGOING and metadata.partitions.issuperset(partitions)


def verify(
    metadata: TransactionMetadata, producer: Producer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return for each partition whether it is part of the open transaction.

    Without this check, a late produce request could leave a hanging transaction (KIP-890).
    """
    check_producer(metadata, producer)
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    _check_not_kept(metadata)
    return {
        tp: ErrorCode.NONE if tp in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for tp in partitions
    }
