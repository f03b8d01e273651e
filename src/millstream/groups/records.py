"""The records of ``__consumer_offsets``: conversion between messages and bytes.

Key: the record type, then the key message (v0). Value: its version, then the value message; a null
value is a tombstone. Values are written in the same versions as Apache Kafka's, so that Kafka and
its tools can read them.
"""

from __future__ import annotations

import struct
from typing import Any

from millstream.core.decisions import CoordinatorRecord
from millstream.wire.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.schema import DecodeError, Struct

_NUMBER = struct.Struct(">h")

# record type -> key, value, and the version in which the value is written
_TYPES: dict[int, tuple[type[Struct], type[Struct], int]] = {
    1: (OffsetCommitKey, OffsetCommitValue, 4),
    2: (GroupMetadataKey, GroupMetadataValue, 3),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, 0),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, 0),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
}
# Very old brokers wrote committed offsets with type 0; the meaning is the same.
_READ = {0: _TYPES[1], **_TYPES}
_WRITE = {key: (_NUMBER.pack(number), version) for number, (key, _, version) in _TYPES.items()}
# Only this version of the value has the expiry of a commit (OffsetCommit v2-4 with a retention
# time).
_OFFSET_WITH_EXPIRY = 1
NO_TIMESTAMP = -1


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    prefix, version = _WRITE[type(record.key)]
    key = bytes(record.key.encode(0, bytearray(prefix)))
    value = record.value
    if value is None:
        return key, None
    if type(value) is OffsetCommitValue and value.expire_timestamp != NO_TIMESTAMP:
        version = _OFFSET_WITH_EXPIRY
    return key, bytes(value.encode(version, bytearray(_NUMBER.pack(version))))


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Return the record, or None if its type or version is unknown or its bytes are invalid."""
    try:
        (number,) = _NUMBER.unpack_from(key)
        declared = _READ.get(number)
        if declared is None:
            return None
        decoded_key, _ = declared[0].decode(key, 0, _NUMBER.size)
        return CoordinatorRecord(decoded_key, None if value is None else _value(declared[1], value))
    except (struct.error, DecodeError):
        return None


def _value(declared: type[Struct], value: bytes) -> Any:
    (version,) = _NUMBER.unpack_from(value)
    decoded, _ = declared.decode(value, version, _NUMBER.size)
    return decoded


def size_of(record: CoordinatorRecord) -> int:
    """Return the maximum number of bytes that the record takes in a batch."""
    key, value = encode(record)
    return len(key) + (len(value) if value is not None else 0) + _RECORD_OVERHEAD


def max_size_of(record: CoordinatorRecord) -> int:
    """Return an upper bound of the size, computed quickly for the records of target assignments."""
    key, value = record.key, record.value
    if type(key) is not ConsumerGroupTargetAssignmentMemberKey or value is None:
        return size_of(record)
    rows = sum(_ROW_OVERHEAD + 4 * len(row.partitions) for row in value.topic_partitions)
    return _RECORD_OVERHEAD + _TARGET_OVERHEAD + 4 * (len(key.group_id) + len(key.member_id)) + rows


# Target: types and versions, lengths of two strings and a list, tags. Row: topic id, length of the
# list, tags.
_TARGET_OVERHEAD, _ROW_OVERHEAD = 32, 32
# Length, attributes, timestamp delta, offset delta, lengths of key and value, no headers.
_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 1


def offset_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group=group, topic=topic, partition=partition), None)


def group_tombstone(group: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group), None)
