"""Which topics a classic consumer subscribes to, read from the metadata it joins with.

Version 0 of the consumer's embedded protocol is a prefix of every later version: int16 version, then the names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL = "consumer"
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None where one of them cannot be read."""
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
            raise struct.error("a name beyond the end")
        yield metadata[position : position + length].decode()
        position += length
