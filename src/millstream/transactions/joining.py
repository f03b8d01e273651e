"""AddPartitionsToTxn and AddOffsetsToTxn: may these partitions take part, or do they already?

Under transaction.version 2 produce requests and offset commits add their partitions themselves (KIP-890): the same decision.
"""

from __future__ import annotations

from collections.abc import Collection

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.transactions.metadata import Producer, TransactionMetadata
from millstream.transactions.states import PREPARED, TransactionState

# AddPartitionsToTxn from here on comes from brokers, for clients of transaction.version 2.
_FROM_BROKERS = 4


def client_version(version: int) -> int:
    """The transaction.version of the client behind a version of AddPartitionsToTxn."""
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
    # First of all: after a roll-over the client already uses an id that takes effect when the markers are written.
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    check_producer(metadata, producer)
    _check_not_kept(metadata)


def _check_not_kept(metadata: TransactionMetadata) -> None:
    """KIP-939: whoever took over a prepared transaction may only end it."""
    if metadata.kept:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)


def all_joined(metadata: TransactionMetadata, partitions: Collection[TopicPartition]) -> bool:
    return metadata.state is TransactionState.ONGOING and metadata.partitions.issuperset(partitions)


def verify(
    metadata: TransactionMetadata, producer: Producer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Are these partitions part of the open transaction? (KIP-890: a late produce must not leave one hanging.)"""
    check_producer(metadata, producer)
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    _check_not_kept(metadata)
    return {
        tp: ErrorCode.NONE if tp in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for tp in partitions
    }
