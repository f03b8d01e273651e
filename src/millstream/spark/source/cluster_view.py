"""The cluster as the driver of a query sees it: partitions, log start and end offsets, leaders.

All requests use ``client/protocol``. If a broker is down or a leader moves, they are retried until
``retryTimeoutMs``. But the first contact of a query fails at once, since an address that does not
answer is most likely wrong.
"""

from __future__ import annotations

import re
import select
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from millstream.client.errors import BrokerUnreachable, ClientError, refusal, unknown_topic
from millstream.client.protocol import Address, Pending, Protocol
from millstream.client.retries import MOVING
from millstream.core.errors import ErrorCode
from millstream.core.ids import id_text
from millstream.core.types import TopicPartition
from millstream.spark.options import OptionError, Options
from millstream.spark.source.offsets import EARLIEST, LATEST, LogState
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.schema import NULL_UUID

T = TypeVar("T")

RETRY_S = 0.1
REQUEST_TIMEOUT_S = 30.0
# Errors of a leader that has just changed, or is about to.
AWAY = MOVING | {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}
READ_COMMITTED = 1


class PartitionInfo(NamedTuple):
    """A partition, its leader, and the id of its topic."""

    partition: TopicPartition
    leader: Address
    topic_id: bytes


class ClusterView:
    """The view of one query."""

    def __init__(self, options: Options) -> None:
        self.connection = options.connection(REQUEST_TIMEOUT_S)
        self.protocol = Protocol(self.connection)
        self._options = options
        # Separate connections, so that delayed fetches block no other request.
        self._waiting = Protocol(self.connection)
        self._delayed: dict[int, Pending] = {}
        self._has_connected = False
        self.partitions: dict[TopicPartition, PartitionInfo] = {}

    @property
    def isolation(self) -> int:
        return READ_COMMITTED if self._options["isolationLevel"] == "read_committed" else 0

    @property
    def ids(self) -> dict[str, str]:
        """Topic ids as text, if brokers have them."""
        raw_ids = {info.partition.topic: info.topic_id for info in self.partitions.values()}
        return {topic: id_text(raw) for topic, raw in raw_ids.items() if raw != NULL_UUID}

    def retry(self, attempt: Callable[[], T]) -> T:
        """Retry while brokers or leaders are away."""
        started_s = time.monotonic()
        while True:
            try:
                result = attempt()
                self._has_connected = True
                return result
            except BrokerUnreachable:
                if not self._has_connected or self._is_over(started_s):
                    raise
            except ClientError as error:
                # An error is a response too.
                self._has_connected = True
                if error.code not in AWAY or self._is_over(started_s):
                    raise
            time.sleep(RETRY_S)

    def _is_over(self, started_s: float) -> bool:
        return time.monotonic() - started_s > float(self._options["retryTimeoutMs"]) / 1000

    # ---------------------------------------------------------------- partitions

    def refresh(self) -> dict[TopicPartition, PartitionInfo]:
        """Find the partitions that the subscription matches now."""
        self.partitions = self.retry(self._find)
        return self.partitions

    def drop_missing(self) -> None:
        """Keep only the partitions of topics that still exist."""
        existing = {topic.name for topic in self.retry(lambda: self.protocol.metadata(None)).topics}
        self.partitions = {
            partition: info
            for partition, info in self.partitions.items()
            if partition.topic in existing
        }

    def _find(self) -> dict[TopicPartition, PartitionInfo]:
        pattern = (
            self._options["subscribePattern"] if self._options.is_set("subscribePattern") else None
        )
        names = None if pattern is not None else self._named_topics()
        metadata = self.protocol.metadata(names)
        brokers = {
            broker.node_id: Address(broker.node_id, broker.host, broker.port)
            for broker in metadata.brokers
        }
        topics = [topic for topic in metadata.topics if pattern is None or _matches(pattern, topic)]
        partitions = {}
        for topic in topics:
            self._check_topic(topic)
            for described in topic.partitions:
                partition = TopicPartition(topic.name, described.partition_index)
                if self._is_assigned(partition):
                    leader = _leader(partition, described, brokers)
                    partitions[partition] = PartitionInfo(partition, leader, topic.topic_id)
        self._check_assigned(partitions)
        return partitions

    def _named_topics(self) -> list[str]:
        if self._options.is_set("assign"):
            return sorted(self._options["assign"])
        return sorted(set(self._options["subscribe"]))

    def _is_assigned(self, partition: TopicPartition) -> bool:
        if not self._options.is_set("assign"):
            return True
        return partition.partition in self._options["assign"].get(partition.topic, ())

    def _check_assigned(self, partitions: Mapping[TopicPartition, PartitionInfo]) -> None:
        for topic, numbers in (self._options["assign"] or {}).items():
            missing = [
                number for number in numbers if TopicPartition(topic, number) not in partitions
            ]
            if missing:
                raise OptionError(
                    f"topic {topic!r} has no partition {missing[0]}",
                    hint=f"run `millstream topics describe {topic}` and correct the option 'assign'",
                    code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )

    def _check_topic(self, topic: Any) -> None:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            known = [
                other.name for other in self.protocol.metadata(None).topics if not other.is_internal
            ]
            raise unknown_topic(topic.name, known)
        if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            raise refusal(topic.error_code, doing=f"read topic {topic.name!r}", subject=topic.name)

    # ---------------------------------------------------------------- offsets

    def logs(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, LogState]:
        """Return where each log begins, and how far it is readable at this isolation level."""
        requested = list(self.partitions if partitions is None else partitions)
        earliest = self.offsets(dict.fromkeys(requested, EARLIEST))
        latest = self.offsets(dict.fromkeys(requested, LATEST))
        return {
            partition: LogState(earliest[partition], max(earliest[partition], latest[partition]))
            for partition in requested
        }

    def offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of each partition at a time in ms, EARLIEST or LATEST.

        It is -1 if no record is that late.
        """
        offsets: dict[TopicPartition, int] = {}

        def list_remaining() -> None:
            remaining = {
                partition: timestamp
                for partition, timestamp in timestamps.items()
                if partition not in offsets
            }
            if remaining:
                offsets.update(self._list_offsets(remaining))

        self._retry_with_new_leaders(list_remaining)
        return offsets

    def _retry_with_new_leaders(self, attempt: Callable[[], T]) -> T:
        stale = False

        def attempt_with_leaders() -> T:
            nonlocal stale
            if stale:
                self.partitions |= self._find()
            try:
                return attempt()
            except ClientError:
                stale = True
                raise

        return self.retry(attempt_with_leaders)

    def _list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        offsets = {}
        for leader, partitions in self._by_leader(timestamps).items():
            topics = [
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=partition.partition, timestamp=timestamps[partition]
                        )
                        for partition in topic_partitions
                    ],
                )
                for topic, topic_partitions in _by_topic(partitions).items()
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=self.isolation,
                topics=topics,
                timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            )
            for topic in self.protocol.ask(request, node=leader).topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    if result.error_code:
                        raise refusal(
                            result.error_code,
                            doing=f"find the offsets of {partition}",
                            subject=topic.name,
                        )
                    offsets[partition] = result.offset
        return offsets

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        leaders = defaultdict(list)
        for partition in partitions:
            leaders[self.partitions[partition].leader.node].append(partition)
        return leaders

    # ---------------------------------------------------------------- waiting

    def wait_for_records(self, positions: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Return when a partition has a record at its position, or after the timeout.

        Each broker gets one delayed fetch. A fetch that is still pending when another broker has
        responded is reused by the next call. At worst it returns once too early.
        """
        try:
            known = [partition for partition in positions if partition in self.partitions]
            for leader, partitions in self._by_leader(known).items():
                if leader not in self._delayed:
                    request = self._delayed_fetch(partitions, positions, timeout_ms)
                    self._delayed[leader] = self._waiting.begin(request, node=leader)
            if not self._delayed:
                time.sleep(timeout_ms / 1000)
                return
            ready, _, _ = select.select(
                list(self._delayed.values()), [], [], timeout_ms / 1000 + 0.2
            )
            for pending in ready:
                del self._delayed[pending.node]
                pending.answer()
        except ClientError:
            # A broker is down. The next request for offsets meets the same error and reports it.
            self._delayed.clear()
            self._waiting.close()
            time.sleep(RETRY_S)

    def _delayed_fetch(
        self,
        partitions: Iterable[TopicPartition],
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
    ) -> FetchRequest:
        """Return a fetch with the smallest possible response: one batch of one partition."""
        topics = [
            FetchTopic(
                topic=topic,
                topic_id=self.partitions[topic_partitions[0]].topic_id,
                partitions=[
                    FetchPartition(
                        partition=partition.partition,
                        fetch_offset=positions[partition],
                        partition_max_bytes=1,
                    )
                    for partition in topic_partitions
                ],
            )
            for topic, topic_partitions in _by_topic(partitions).items()
        ]
        return FetchRequest(
            max_wait_ms=timeout_ms,
            min_bytes=1,
            max_bytes=1,
            isolation_level=self.isolation,
            topics=topics,
        )

    def close(self) -> None:
        self.protocol.close()
        self._waiting.close()


def _matches(pattern: str, topic: Any) -> bool:
    return not topic.is_internal and re.fullmatch(pattern, topic.name) is not None


def _leader(partition: TopicPartition, described: Any, brokers: Mapping[int, Address]) -> Address:
    leader = brokers.get(described.leader_id)
    if leader is None:
        raise ClientError(
            f"partition {partition} has no leader",
            hint="start its brokers; see `millstream topics list --unavailable`",
            code=ErrorCode.LEADER_NOT_AVAILABLE,
        )
    return leader


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition)
    return topics
