"""Commit a query's progress as consumer group offsets, so that every Kafka tool shows its lag.

It is only a copy: a query starts from its checkpoint, never from here. So a failed commit costs a
line in the log. A separate thread commits, and skips to the newest offsets.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

from millstream.client.connection import Connection
from millstream.client.errors import ClientError, refusal
from millstream.client.protocol import GROUP, Protocol
from millstream.core.types import TopicPartition
from millstream.spark.source.data_loss import say
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.schema import NULL_UUID


class GroupProgress:
    """Commits the offsets it is offered, the newest last."""

    def __init__(self, connection: Connection, group: str) -> None:
        self.group = group
        self._protocol = Protocol(connection)
        self._changed = threading.Condition()
        self._newest: tuple[dict[TopicPartition, int], dict[str, bytes]] | None = None
        self._done: dict[TopicPartition, int] = {}
        self._busy = False
        self._closed = False
        self._has_reported = False
        self._thread: threading.Thread | None = None

    def offer(self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes]) -> None:
        """Commit these offsets in the background, unless newer ones come first."""
        with self._changed:
            if self._closed or dict(positions) == self._done:
                return
            self._newest = dict(positions), dict(ids)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="millstream-group-progress", daemon=True
                )
                self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all offered offsets are committed."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._newest is None and not self._busy, timeout_s
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._newest is not None or self._closed)
                if self._newest is None:
                    self._protocol.close()
                    return
                (positions, ids), self._newest = self._newest, None
                self._busy = True
            self._try(positions, ids)

    def _try(self, positions: dict[TopicPartition, int], ids: Mapping[str, bytes]) -> None:
        try:
            self._protocol.patiently(lambda: self._commit(positions, ids))
            self._done = positions
            self._has_reported = False
        except ClientError as error:
            if not self._has_reported:
                say(f"the offsets of group {self.group!r} are not committed for now: {error}")
            self._has_reported = True

    def _commit(self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes]) -> None:
        by_topic = defaultdict(list)
        for (topic, partition), offset in positions.items():
            by_topic[topic].append(
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            )
        topics = [
            OffsetCommitRequestTopic(
                name=topic, topic_id=ids.get(topic, NULL_UUID), partitions=partitions
            )
            for topic, partitions in by_topic.items()
        ]
        request = OffsetCommitRequest(group_id=self.group, member_id="", topics=topics)
        coordinator = self._protocol.coordinator(self.group, GROUP)
        for topic in self._protocol.ask(request, node=coordinator.node).topics:
            for result in topic.partitions:
                if result.error_code:
                    raise refusal(
                        result.error_code, doing=f"commit offsets of group {self.group!r}"
                    )
