"""Reading without a group: the consumer assigns all partitions to itself.

There is no coordinator, and nothing is committed. Members of a group are in ``membership.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from millstream.client.admin.client import Admin
from millstream.client.admin.offsets import Isolation
from millstream.client.connection import FAST_REFETCH, Connection
from millstream.client.consuming.positions import Position
from millstream.client.consuming.topic_pattern import TopicSelection
from millstream.client.errors import ClientError
from millstream.client.library import (
    KafkaConsumer,
    KafkaException,
    KafkaTopicPartition,
    cluster_metadata,
    interruptible,
    make,
)
from millstream.core.types import TopicPartition

# How often to look for new topics and partitions that match a pattern.
LOOK_FOR_TOPICS_S = 10.0
LOOK_TIMEOUT_S = 5.0


class ManualAssignment:
    """All partitions of the topics, or those with the numbers in ``only``.

    ``remaining`` is the consumer's table of ends to read to, filled in here, or None if it follows.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        *,
        only: Sequence[int] | None,
        start: Position,
        remaining: dict[TopicPartition, int] | None,
        isolation: Isolation,
    ) -> None:
        self.started: dict[TopicPartition, int] = {}  # where reading began, by partition
        self._connection = connection
        self._only = only
        self._remaining = remaining
        self._isolation: Isolation = isolation
        self._selection = TopicSelection(topics)
        self._next_look_s = time.monotonic() + LOOK_FOR_TOPICS_S
        self.client = self._assign(self._resolve(topics, start))

    def _resolve(self, topics: Sequence[str], start: Position) -> list[TopicPartition]:
        """Return the partitions to read, and set where to start and, with ``remaining``, to end."""
        with Admin.over(self._connection) as admin:
            if self._selection.has_pattern:
                topics = self._selection.topics(admin.topics.names())
            partitions = [
                partition
                for topic in topics
                for partition in admin.topics.partitions(topic, self._only)
            ]
            self.started = start.resolve(partitions, admin.offsets, self._isolation)
            if self._remaining is not None:
                ends = admin.offsets.list(
                    dict.fromkeys(partitions, "latest"), isolation=self._isolation
                )
                self._remaining |= {
                    partition: end.offset
                    for partition, end in ends.items()
                    if end.offset > self.started[partition]
                }
        return partitions

    def _assign(self, partitions: Sequence[TopicPartition]) -> KafkaConsumer:
        client = make(
            KafkaConsumer,
            self._connection.config(
                {
                    # librdkafka requires a name even without a group; nothing is committed to it.
                    "group.id": "millstream",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "isolation.level": self._isolation,
                    # The broker delays the empty response that shows the end of a partition.
                    "fetch.wait.max.ms": 500 if self._remaining is None else 100,
                    **FAST_REFETCH,
                }
            ),
        )
        # librdkafka drops the bootstrap connection once it knows the brokers. Without a group
        # coordinator it may take a second to open the next; a metadata request opens it now.
        self._warm_up(client, partitions)
        client.assign(self._with_start(partitions))
        return client

    def _with_start(self, partitions: Sequence[TopicPartition]) -> list[KafkaTopicPartition]:
        return [
            KafkaTopicPartition(*partition, self.started[partition]) for partition in partitions
        ]

    def _warm_up(self, client: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            topic = partitions[0].topic
            doing = f"consume {topic!r}"
            try:
                with Admin.over(self._connection) as admin:
                    cluster_metadata(
                        client,
                        topic,
                        admin.retries,
                        lambda error: admin.explain(error, doing=doing, subject=topic),
                        doing,
                    )
            except ClientError:
                client.close()
                raise

    def look_for_topics(self) -> None:
        """Add partitions that started to match a pattern since the last look, from their beginning.

        Members of a group learn of them from the group.
        """
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        if not self._selection.has_pattern or self._remaining is not None:
            self._next_look_s = math.inf
            return
        self._next_look_s = now_s + LOOK_FOR_TOPICS_S
        try:
            known = interruptible(self.client.list_topics, timeout=LOOK_TIMEOUT_S).topics
        except KafkaException:
            return  # the next look may be answered; reading continues without it
        new = [
            partition
            for topic in self._selection.appeared(known)
            for number in known[topic].partitions
            if (self._only is None or number in self._only)
            and (partition := TopicPartition(topic, number)) not in self.started
        ]
        if new:
            try:
                with Admin.over(self._connection) as admin:
                    self.started |= Position("earliest").resolve(
                        new, admin.offsets, self._isolation
                    )
            except ClientError:
                return  # as above: the topic may have been deleted again
            self.client.incremental_assign(self._with_start(new))

    def close(self) -> None:
        self.client.close()
