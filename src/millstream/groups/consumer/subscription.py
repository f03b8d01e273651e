"""Subscriptions of a consumer group, resolved with the existing topics."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from millstream.core.ids import NULL_ID
from millstream.groups.topics_view import Topics

_HASH = struct.Struct(">q")


def topic_ids(names: Iterable[str], topics: Topics) -> dict[bytes, int]:
    """Return the ids of the topics that exist, with their numbers of partitions."""
    partition_counts: dict[bytes, int] = {}
    for name in names:
        topic_id = topics.id_of(name)
        if topic_id is not None and topic_id != NULL_ID:
            partition_counts[topic_id] = topics.partition_count(name) or 0
    return partition_counts


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Return a hash that changes whenever an assignment to these topics might change.

    It does if a topic is created or deleted, gets more partitions or other racks. 0 is the hash of
    no topics. Kafka uses another hash function, so it assigns once more when it reads this hash.
    """
    fingerprints = [topics.fingerprint(name) for name in sorted(names)]
    present = b"".join(fingerprint for fingerprint in fingerprints if fingerprint is not None)
    if not present:
        return 0
    return int(_HASH.unpack(hashlib.blake2b(present, digest_size=8).digest())[0])
