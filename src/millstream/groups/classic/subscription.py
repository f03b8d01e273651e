"""The topics that a classic consumer subscribes to, from the metadata of its join.

Version 0 of the consumer's embedded protocol is a prefix of every later version: an int16 version,
then the topic names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL = "consumer"
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all members, or None if a subscription cannot be decoded."""
    topics: set[str] = set()
    try:
        for metadata in subscriptions:
            topics.update(_topics(metadata))
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def _topics(metadata: bytes) -> Iterable[str]:
    _, count = _HEAD.unpack_from(metadata)
    position = _HEAD.size
    if count > len(metadata):
        raise struct.error("more topics than bytes")
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            raise struct.error("a topic name exceeds the metadata")
        yield metadata[position : position + length].decode()
        position += length
