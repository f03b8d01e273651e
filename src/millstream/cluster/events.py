"""Events of the replicas on this broker. A listener is passed to the constructor of the sender.

Listeners are called on the event loop, in the turn of the change, and must not raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.cluster.replicas.partition import Partition


class ReplicaEvents(Protocol):
    """Sent by ``ReplicaManager``."""

    def led(self, partition: Partition) -> None:
        """This broker leads the partition, in a new or the same epoch, and its log is online."""

    def lost(self, tp: TopicPartition) -> None:
        """This broker led the partition and no longer does."""

    def gone(self, tp: TopicPartition) -> None:
        """This broker no longer has a replica of the partition; its log is about to be deleted."""


class MarkerEvents(Protocol):
    """Sent by ``MarkerSender``."""

    def marker_written(
        self, tp: TopicPartition, offset: int, producer_id: int, commit: bool
    ) -> None:
        """A marker is in the log of a partition that this broker leads."""


class NoListener:
    """Ignores every event."""

    def led(self, partition: Partition) -> None: ...
    def lost(self, tp: TopicPartition) -> None: ...
    def gone(self, tp: TopicPartition) -> None: ...
    def marker_written(
        self, tp: TopicPartition, offset: int, producer_id: int, commit: bool
    ) -> None: ...


NO_LISTENER = NoListener()
