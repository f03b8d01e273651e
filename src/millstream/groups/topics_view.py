"""The view of a group shard of the cluster's topics.

A view is immutable: a change of the metadata creates a new one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from millstream.core.ids import NULL_ID

_NUMBER = struct.Struct(">i")


class Topics(Protocol):
    """Names, ids, partitions and racks of all topics at one point in time."""

    @property
    def version(self) -> int:
        """A number that grows with every change."""

    def names(self) -> Iterable[str]: ...

    def id_of(self, name: str) -> bytes | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether the topic is recorded as deleted. A topic may be missing without that."""

    def partition_count(self, name: str) -> int | None: ...

    def racks_of(self, name: str, partition: int) -> tuple[str, ...]:
        """Return the racks of the partition's replicas, sorted."""

    def fingerprint(self, name: str) -> bytes | None:
        """Return a hash of all that an assignment depends on, or None if the topic does not exist.

        It covers id, name, partitions and racks.
        """


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic of a ``TopicsView``; ``racks`` by partition, empty if no broker has a rack."""

    topic_id: bytes
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class TopicsView:
    """Topics from a mapping, with names by id and the ids of deleted topics."""

    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    version: int = 0
    deleted: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        by_id = {
            info.topic_id: name for name, info in self.topics.items() if info.topic_id != NULL_ID
        }
        object.__setattr__(self, "_by_id", by_id)
        # Cached: a group needs fingerprints at every join and leave, and a topic may have thousands
        # of partitions.
        object.__setattr__(self, "_fingerprints", {})

    def names(self) -> Iterable[str]:
        return self.topics.keys()

    def id_of(self, name: str) -> bytes | None:
        info = self.topics.get(name)
        return info.topic_id if info is not None else None

    def name_of(self, topic_id: bytes) -> str | None:
        by_id: dict[bytes, str] = self._by_id  # type: ignore[attr-defined]
        return by_id.get(topic_id)

    def is_deleted(self, topic_id: bytes) -> bool:
        return topic_id in self.deleted

    def partition_count(self, name: str) -> int | None:
        info = self.topics.get(name)
        return info.partitions if info is not None else None

    def racks_of(self, name: str, partition: int) -> tuple[str, ...]:
        info = self.topics.get(name)
        if info is None or partition >= len(info.racks):
            return ()
        return info.racks[partition]

    def fingerprint(self, name: str) -> bytes | None:
        known: dict[str, bytes] = self._fingerprints  # type: ignore[attr-defined]
        if name not in known and name in self.topics:
            known[name] = _fingerprint(name, self.topics[name])
        return known.get(name)


def _fingerprint(name: str, info: TopicInfo) -> bytes:
    digest = hashlib.blake2b(
        info.topic_id + _text(name) + _NUMBER.pack(info.partitions), digest_size=16
    )
    for partition, racks in enumerate(info.racks[: info.partitions]):
        if racks:
            digest.update(_NUMBER.pack(partition) + b"".join(map(_text, racks)))
    return digest.digest()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _NUMBER.pack(len(encoded)) + encoded


NO_TOPICS = TopicsView()
