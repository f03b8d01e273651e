"""Replicas that live brokers cannot serve, or have no room for, as the brokers report them.

The controller only keeps this in memory: every broker reports again to the next controller.
"""

from __future__ import annotations

from millstream.control.image import TopicImage
from millstream.core.types import TopicPartition

_NONE: frozenset[TopicPartition] = frozenset()


class UnavailableReplicas:
    """The latest report of each broker, by its id."""

    def __init__(self) -> None:
        self._offline: dict[int, frozenset[TopicPartition]] = {}
        self._full: dict[int, frozenset[TopicPartition]] = {}
        self._without_directories: set[int] = set()

    def clear(self) -> None:
        self._offline.clear()
        self._full.clear()
        self._without_directories.clear()

    def forget_broker(self, node: int) -> None:
        self._offline.pop(node, None)
        self._full.pop(node, None)
        self._without_directories.discard(node)

    def offline_on(self, node: int) -> frozenset[TopicPartition]:
        """Return the replicas of a broker whose directory failed, or that are damaged."""
        return self._offline.get(node, _NONE)

    def full_on(self, node: int) -> frozenset[TopicPartition]:
        """Return the replicas of a broker in directories without room."""
        return self._full.get(node, _NONE)

    def set_offline(self, node: int, replicas: frozenset[TopicPartition]) -> None:
        self._offline[node] = replicas

    def set_full(self, node: int, replicas: frozenset[TopicPartition]) -> None:
        self._full[node] = replicas

    def set_directories_offline(self, node: int, offline: bool) -> None:
        """Record whether a broker reports a failed directory."""
        if offline:
            self._without_directories.add(node)
        else:
            self._without_directories.discard(node)

    def has_all_directories(self, node: int) -> bool:
        return node not in self._without_directories

    def brokers_offline(self, topic: TopicImage, index: int) -> tuple[int, ...]:
        """Return the brokers whose replica of this partition is offline."""
        tp = TopicPartition(topic.name, index)
        return tuple(node for node, replicas in self._offline.items() if tp in replicas)

    def brokers_full(self, topic: TopicImage, index: int) -> tuple[int, ...]:
        """Return the brokers that have no room for their replica of this partition."""
        tp = TopicPartition(topic.name, index)
        return tuple(node for node, replicas in self._full.items() if tp in replicas)
