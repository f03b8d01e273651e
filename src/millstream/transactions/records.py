"""The records of ``__transaction_state``: conversion between metadata, messages and bytes.

Key: the record type (0), then TransactionLogKey. Value: its version, then TransactionLogValue; a
null value is a tombstone. Value version 1 (KIP-890) is written as soon as a field needs it. Under
``transaction.version`` 0 no field does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import groupby

from millstream.core.decisions import CoordinatorRecord
from millstream.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from millstream.transactions.metadata import (
    EPOCH_PER_TRANSACTION,
    NO_PARTITIONS,
    TransactionMetadata,
)
from millstream.transactions.states import COMPLETED_BY, TransactionState
from millstream.wire.schema import DecodeError
from millstream.wire.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

RECORD_TYPE = 0
_NUMBER = struct.Struct(">h")
_VALUE_VERSIONS = (0, 1)
_ENDS = frozenset(COMPLETED_BY) | frozenset(COMPLETED_BY.values())
# States that appear in records. Dead and PrepareEpochFence exist in memory only.
_RECORDED = frozenset(TransactionState) - {
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
}


def record_of(
    transactional_id: str, metadata: TransactionMetadata, transaction_version: int
) -> CoordinatorRecord:
    """Return the record of the metadata, in the format of the finalized ``transaction.version``."""
    value = _value_of(metadata)
    if transaction_version == 0 and not _ends_by_new_rules(metadata):
        # Brokers of this level know only version 0 of the value.
        value.previous_producer_id = NO_PRODUCER_ID
        value.client_transaction_version = 0
    return CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), value)


def _ends_by_new_rules(metadata: TransactionMetadata) -> bool:
    """Return whether a client of version 2 ends its transaction.

    Its fields are written whatever version is finalized. They are kept after the markers are
    written, because only they distinguish the client's retry, which must succeed (KIP-890), from a
    zombie's request.
    """
    return metadata.state in _ENDS and metadata.client_transaction_version >= EPOCH_PER_TRANSACTION


def tombstone_of(transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), None)


def metadata_of(value: TransactionLogValue) -> TransactionMetadata:
    state = TransactionState(value.transaction_status)
    rows = value.transaction_partitions or []
    partitions = (TopicPartition(row.topic, index) for row in rows for index in row.partition_ids)
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        state=state,
        timeout_ms=value.transaction_timeout_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        start_ms=value.transaction_start_timestamp_ms,
        partitions=frozenset(partitions)
        if rows and state is not TransactionState.EMPTY
        else NO_PARTITIONS,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        client_transaction_version=value.client_transaction_version,
    )


def _value_of(metadata: TransactionMetadata) -> TransactionLogValue:
    empty = metadata.state is TransactionState.EMPTY
    return TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        next_producer_epoch=metadata.next_producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=None if empty else _grouped(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )


def _grouped(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    rows = groupby(sorted(partitions), key=lambda tp: tp.topic)
    return [
        PartitionsSchema(topic=topic, partition_ids=[tp.partition for tp in row])
        for topic, row in rows
    ]


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    key = record.key.encode(0, bytearray(_NUMBER.pack(RECORD_TYPE)))
    if record.value is None:
        return bytes(key), None
    version = 1 if _needs_tags(record.value) else 0
    return bytes(key), bytes(record.value.encode(version, bytearray(_NUMBER.pack(version))))


def _needs_tags(value: TransactionLogValue) -> bool:
    return (
        value.previous_producer_id != NO_PRODUCER_ID
        or value.next_producer_id != NO_PRODUCER_ID
        or value.next_producer_epoch != NO_PRODUCER_EPOCH
        or value.client_transaction_version != 0
    )


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Return the record, or None if its type, version or state is unknown.

    An aborted upgrade can leave such records behind.
    """
    try:
        (record_type,) = _NUMBER.unpack_from(key)
        if record_type != RECORD_TYPE:
            return None
        decoded_key, _ = TransactionLogKey.decode(key, 0, _NUMBER.size)
        return (
            CoordinatorRecord(decoded_key, None) if value is None else _decoded(decoded_key, value)
        )
    except (struct.error, DecodeError):
        return None


def _decoded(key: TransactionLogKey, value: bytes) -> CoordinatorRecord | None:
    (version,) = _NUMBER.unpack_from(value)
    if version not in _VALUE_VERSIONS:
        return None
    decoded, _ = TransactionLogValue.decode(value, version, _NUMBER.size)
    if decoded.transaction_status not in _RECORDED:
        return None
    return CoordinatorRecord(key, decoded)
