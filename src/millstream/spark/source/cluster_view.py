"""The cluster as the driver of a query sees it: which partitions are meant, where their logs begin and end, who leads them.

All through ``client/protocol``. Whatever fails because a broker is away or a leader moves is asked again until
``retryTimeoutMs`` is over; the first contact of a query fails at once, since an address that nobody answers is most likely wrong.
"""

from __future__ import annotations

import re
import select
import time
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from millstream.client.errors import BrokerUnreachable, ClientError, refusal, unknown_topic
from millstream.client.protocol import Address, Pending, Protocol
from millstream.client.retries import MOVING
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.spark.options import OptionError, Options
from millstream.spark.source.offsets import EARLIEST, LATEST, LogState
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.schema import NULL_UUID

T = TypeVar("T")

RETRY_S = 0.1
REQUEST_TIMEOUT_S = 30.0
# A leader that has just changed, or is about to.
AWAY = MOVING | {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}
READ_COMMITTED = 1


class Place(NamedTuple):
    """A partition, who leads it, and the id of its topic."""

    partition: TopicPartition
    leader: Address
    topic_id: bytes


class ClusterView:
    """What one query asks of its cluster."""

    def __init__(self, options: Options) -> None:
        self.connection = options.connection(REQUEST_TIMEOUT_S)
        self.protocol = Protocol(self.connection)
        self._options = options
        self._waiting = Protocol(self.connection)  # fetches that are parked at the brokers block nothing else
        self._parked: dict[int, Pending] = {}
        self._met = False
        self.places: dict[TopicPartition, Place] = {}

    @property
    def isolation(self) -> int:
        return READ_COMMITTED if self._options["isolationLevel"] == "read_committed" else 0

    @property
    def ids(self) -> dict[str, str]:
        """Topic ids as text, of brokers that have them."""
        found = {place.partition.topic: place.topic_id for place in self.places.values()}
        return {topic: id_text(raw) for topic, raw in found.items() if raw != NULL_UUID}

    def persist(self, attempt: Callable[[], T]) -> T:
        """Repeat what fails because brokers or leaders are away."""
        begun_s = time.monotonic()
        while True:
            try:
                found = attempt()
                self._met = True
                return found
            except BrokerUnreachable:
                if not self._met or self._is_over(begun_s):
                    raise
            except ClientError as error:
                self._met = True  # an error is an answer too
                if error.code not in AWAY or self._is_over(begun_s):
                    raise
            time.sleep(RETRY_S)

    def _is_over(self, begun_s: float) -> bool:
        return time.monotonic() - begun_s > float(self._options["retryTimeoutMs"]) / 1000

    # ---------------------------------------------------------------- partitions

    def refresh(self) -> dict[TopicPartition, Place]:
        """Find the partitions that the subscription means now."""
        self.places = self.persist(self._find)
        return self.places

    def forget_missing(self) -> None:
        """Keep only the partitions of topics that still exist."""
        known = {one.name for one in self.persist(lambda: self.protocol.metadata(None)).topics}
        self.places = {one: place for one, place in self.places.items() if one.topic in known}

    def _find(self) -> dict[TopicPartition, Place]:
        pattern = self._options["subscribePattern"] if self._options.given("subscribePattern") else None
        wanted = None if pattern is not None else self._named_topics()
        answer = self.protocol.metadata(wanted)
        brokers = {one.node_id: Address(one.node_id, one.host, one.port) for one in answer.brokers}
        topics = [topic for topic in answer.topics if pattern is None or _matches(pattern, topic)]
        places = {}
        for topic in topics:
            self._check(topic)
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                if self._is_assigned(partition):
                    places[partition] = Place(partition, _leader(partition, one, brokers), topic.topic_id)
        self._check_assigned(places)
        return places

    def _named_topics(self) -> list[str]:
        if self._options.given("assign"):
            return sorted(self._options["assign"])
        return sorted(set(self._options["subscribe"]))

    def _is_assigned(self, partition: TopicPartition) -> bool:
        if not self._options.given("assign"):
            return True
        return partition.partition in self._options["assign"].get(partition.topic, ())

    def _check_assigned(self, places: Mapping[TopicPartition, Place]) -> None:
        for topic, numbers in (self._options["assign"] or {}).items():
            missing = [number for number in numbers if TopicPartition(topic, number) not in places]
            if missing:
                raise OptionError(
                    f"topic {topic!r} has no partition {missing[0]}",
                    hint=f"see `millstream topics describe {topic}`, and correct the option 'assign'",
                    code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )

    def _check(self, topic: Any) -> None:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            known = [one.name for one in self.protocol.metadata(None).topics if not one.is_internal]
            raise unknown_topic(topic.name, known)
        if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            raise refusal(topic.error_code, doing=f"read topic {topic.name!r}", subject=topic.name)

    # ---------------------------------------------------------------- offsets

    def logs(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, LogState]:
        """Where each log begins, and how far it can be read at this isolation level."""
        asked = list(self.places if partitions is None else partitions)
        earliest = self.offsets(dict.fromkeys(asked, EARLIEST))
        latest = self.offsets(dict.fromkeys(asked, LATEST))
        return {one: LogState(earliest[one], max(earliest[one], latest[one])) for one in asked}

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset at a time in ms, at EARLIEST or at LATEST, of each partition; -1 where no record is that late."""
        found: dict[TopicPartition, int] = {}

        def ask_the_rest() -> None:
            rest = {one: mark for one, mark in wanted.items() if one not in found}
            if rest:
                found.update(self._list_offsets(rest))

        self._again_with_new_leaders(ask_the_rest)
        return found

    def _again_with_new_leaders(self, attempt: Callable[[], T]) -> T:
        stale = False

        def try_it() -> T:
            nonlocal stale
            if stale:
                self.places |= self._find()
            try:
                return attempt()
            except ClientError:
                stale = True
                raise

        return self.persist(try_it)

    def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = {}
        for leader, partitions in self._by_leader(wanted).items():
            topics = [
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=one.partition, timestamp=wanted[one])
                        for one in some
                    ],
                )
                for topic, some in _by_topic(partitions).items()
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=self.isolation,
                topics=topics,
                timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            )
            for topic in self.protocol.ask(request, node=leader).topics:
                for one in topic.partitions:
                    partition = TopicPartition(topic.name, one.partition_index)
                    if one.error_code:
                        raise refusal(
                            one.error_code, doing=f"find the offsets of {partition}", subject=topic.name
                        )
                    found[partition] = one.offset
        return found

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        leaders = defaultdict(list)
        for partition in partitions:
            leaders[self.places[partition].leader.node].append(partition)
        return leaders

    # ---------------------------------------------------------------- waiting

    def wait_for_records(self, positions: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Return when a partition has something at its position, or after the timeout.

        One fetch is parked at each broker. One that is still parked when another has answered stays so: it is asked for what
        is new from then on, at worst it answers once too early.
        """
        try:
            for leader, partitions in self._by_leader(one for one in positions if one in self.places).items():
                if leader not in self._parked:
                    request = self._parking_request(partitions, positions, timeout_ms)
                    self._parked[leader] = self._waiting.begin(request, node=leader)
            if not self._parked:
                time.sleep(timeout_ms / 1000)
                return
            ready, _, _ = select.select(list(self._parked.values()), [], [], timeout_ms / 1000 + 0.2)
            for pending in ready:
                del self._parked[pending.node]
                pending.answer()
        except ClientError:
            # A broker is away: whoever asks for offsets next finds out and says so.
            self._parked.clear()
            self._waiting.close()
            time.sleep(RETRY_S)

    def _parking_request(
        self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, int], timeout_ms: int
    ) -> FetchRequest:
        """A fetch that gives as little as the protocol allows: one batch of one partition."""
        topics = [
            FetchTopic(
                topic=topic,
                topic_id=self.places[some[0]].topic_id,
                partitions=[
                    FetchPartition(
                        partition=one.partition, fetch_offset=positions[one], partition_max_bytes=1
                    )
                    for one in some
                ],
            )
            for topic, some in _by_topic(partitions).items()
        ]
        return FetchRequest(
            max_wait_ms=timeout_ms, min_bytes=1, max_bytes=1, isolation_level=self.isolation, topics=topics
        )

    def close(self) -> None:
        self.protocol.close()
        self._waiting.close()


def id_text(raw: bytes) -> str:
    """A topic id as Kafka's tools write it."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


def _matches(pattern: str, topic: Any) -> bool:
    return not topic.is_internal and re.fullmatch(pattern, topic.name) is not None


def _leader(partition: TopicPartition, described: Any, brokers: Mapping[int, Address]) -> Address:
    leader = brokers.get(described.leader_id)
    if leader is None:
        raise ClientError(
            f"partition {partition} has no leader",
            hint="bring its brokers back; see `millstream topics list --unavailable`",
            code=ErrorCode.LEADER_NOT_AVAILABLE,
        )
    return leader


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition)
    return topics
