"""What classic consumers say to one another inside JoinGroup and SyncGroup, read and written for them by the broker.

Each begins with its version. A later version than we know has the fields we know first.
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
    """Raises DecodeError."""
    if len(metadata) < _VERSION.size:
        raise DecodeError("no version")
    version: int = _VERSION.unpack_from(metadata)[0]
    if version < 0:
        raise DecodeError(f"version {version}")
    return min(version, _LATEST)


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """Raises DecodeError."""
    return ConsumerProtocolSubscription.decode(metadata, version_of(metadata), _VERSION.size)[0]


def assignment_of(assignment: bytes) -> ConsumerProtocolAssignment:
    """Raises DecodeError. A member that never synced has none at all."""
    if not assignment:
        return ConsumerProtocolAssignment()
    return ConsumerProtocolAssignment.decode(assignment, version_of(assignment), _VERSION.size)[0]


def encode_assignment(
    partitions: Mapping[bytes, Iterable[int]], topics: Topics, subscription: bytes
) -> bytes:
    """In the version of the member's subscription, or in the first where that cannot be read. Topics that were deleted meanwhile are left out."""
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
    """Named topics by id; those that do not exist are left out."""
    found: dict[bytes, set[int]] = {}
    for row in rows:
        topic_id = topics.id_of(row.topic)
        if topic_id is not None and topic_id != NULL_ID:
            found.setdefault(topic_id, set()).update(row.partitions)
    return found
