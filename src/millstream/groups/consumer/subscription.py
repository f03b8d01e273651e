"""What the subscriptions of a consumer group mean, given the topics there are."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from millstream.core.ids import NULL_ID
from millstream.groups.topics_view import Topics

_HASH = struct.Struct(">q")


def topic_ids(names: Iterable[str], topics: Topics) -> dict[bytes, int]:
    """The topics that exist, by id, with their numbers of partitions."""
    found: dict[bytes, int] = {}
    for name in names:
        topic_id = topics.id_of(name)
        if topic_id is not None and topic_id != NULL_ID:
            found[topic_id] = topics.partition_count(name) or 0
    return found


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Differs whenever an assignment to these topics might: a topic has come or gone, has more partitions, or other racks. 0 is the
    hash of no topics. (Kafka hashes with another function; where it meets a hash of ours it assigns anew once.)"""
    prints = [topics.fingerprint(name) for name in sorted(names)]
    present = b"".join(one for one in prints if one is not None)
    if not present:
        return 0
    return int(_HASH.unpack(hashlib.blake2b(present, digest_size=8).digest())[0])
