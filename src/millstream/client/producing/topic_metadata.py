"""The topics that a producer knows, with their numbers of partitions."""

from __future__ import annotations

import time

from millstream.client.admin.client import Admin
from millstream.client.auto_creation import CreationWait, creates_topics
from millstream.client.connection import Connection
from millstream.client.errors import ClientError, unknown_topic
from millstream.client.library import KafkaError, KafkaProducer, cluster_metadata
from millstream.client.producing.delivery_reports import explain_failure
from millstream.core.errors import ErrorCode

# How long a partitioner may use a number of partitions.
EXPIRES_AFTER_S = 60.0
RETRY_S = 0.05


class TopicMetadata:
    """Topics that were found to exist."""

    def __init__(self, client: KafkaProducer, connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self.partition_counts: dict[str, int] = {}
        self._expires_s: dict[str, float] = {}

    def is_stale(self, topic: str) -> bool:
        return time.monotonic() > self._expires_s[topic]

    def find(self, topic: str) -> None:
        """Learn of a missing topic now, and not after the delivery timeout.

        The request also makes a broker with auto.create.topics.enable create the topic. Until it
        exists the broker answers that it is unknown, so the request is repeated. A topic without a
        leader is waited for longer.
        """
        started_s = time.monotonic()
        creation = CreationWait(self._creates_topics)
        while (error := self._request(topic)) is not None:
            if error.code() == ErrorCode.LEADER_NOT_AVAILABLE:
                is_over = time.monotonic() - started_s > self._connection.timeout_s
            else:
                is_over = error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or creation.is_over()
            if is_over:
                raise self._explain(error, topic)
            time.sleep(RETRY_S)

    def _creates_topics(self) -> bool:
        with Admin.over(self._connection) as admin:
            return creates_topics(admin.protocol)

    def _request(self, topic: str) -> KafkaError | None:
        """Store how many partitions a topic has; return the broker's error if it has one."""
        doing = f"produce to {topic!r}"
        with Admin.over(self._connection) as admin:
            metadata = cluster_metadata(
                self._client,
                topic,
                admin.retries,
                lambda error: admin.explain(error, doing=doing, subject=topic),
                doing,
            ).topics[topic]
        error: KafkaError | None = metadata.error
        if error is None:
            self.partition_counts[topic] = len(metadata.partitions)
            self._expires_s[topic] = time.monotonic() + EXPIRES_AFTER_S
        return error

    def _explain(self, error: KafkaError, topic: str) -> ClientError:
        if error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return explain_failure(error, topic, None)
        with Admin.over(self._connection) as admin:
            return unknown_topic(topic, admin.topics.names())
