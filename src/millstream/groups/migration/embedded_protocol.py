"""The embedded consumer protocol of JoinGroup and SyncGroup, which the broker reads and writes.

Each message starts with its version. A version later than the known ones starts with the known
fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from millstream.core.ids import NULL_ID
from millstream.groups.topics_view import Topics
from millstream.wire.schema import DecodeError, Struct, array, binary, int32, string

_VERSION = struct.Struct(">h")
_LATEST = 3


class OwnedTopic(Struct):
    topic: str = string("0+")
    partitions: list[int] = array("int32", "0+")


class ConsumerProtocolSubscription(Struct, versions="0-3", flexible="none"):
    topics: list[str] = array("string", "0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)
    owned_partitions: list[OwnedTopic] = array(OwnedTopic, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Struct, versions="0-3", flexible="none"):
    assigned_partitions: list[OwnedTopic] = array(OwnedTopic, "0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)


def version_of(metadata: bytes) -> int:
    """Return the version; raise DecodeError if it is missing or negative."""
    if len(metadata) < _VERSION.size:
        raise DecodeError("the version is missing")
    version: int = _VERSION.unpack_from(metadata)[0]
    if version < 0:
        raise DecodeError(f"version {version} is negative")
    return min(version, _LATEST)


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription; raise DecodeError if it is invalid."""
    return ConsumerProtocolSubscription.decode(metadata, version_of(metadata), _VERSION.size)[0]


def assignment_of(assignment: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment; raise DecodeError if it is invalid.

    A member that has never synced has an empty assignment.
    """
    if not assignment:
        return ConsumerProtocolAssignment()
    return ConsumerProtocolAssignment.decode(assignment, version_of(assignment), _VERSION.size)[0]


def encode_assignment(
    partitions: Mapping[bytes, Iterable[int]], topics: Topics, subscription: bytes
) -> bytes:
    """Encode an assignment in the version of the member's subscription.

    If the subscription cannot be decoded, version 0 is used. Deleted topics are left out.
    """
    rows = []
    for topic_id, indexes in sorted(partitions.items()):
        name = topics.name_of(topic_id)
        if name is not None:
            rows.append(OwnedTopic(topic=name, partitions=sorted(indexes)))
    try:
        version = version_of(subscription)
    except DecodeError:
        version = 0
    assignment = ConsumerProtocolAssignment(assigned_partitions=rows)
    return bytes(assignment.encode(version, bytearray(_VERSION.pack(version))))


def by_id(rows: Iterable[OwnedTopic], topics: Topics) -> dict[bytes, set[int]]:
    """Return partitions by topic id, without topics that do not exist."""
    partitions: dict[bytes, set[int]] = {}
    for row in rows:
        topic_id = topics.id_of(row.topic)
        if topic_id is not None and topic_id != NULL_ID:
            partitions.setdefault(topic_id, set()).update(row.partitions)
    return partitions
