"""The follower's side of a fetch session with one leader (KIP-227).

The session knows which row of each partition the leader has. A request only carries rows that have
changed, so a round costs what has changed since the last one, not the number of partitions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.throttles import Throttle
from millstream.core.config import BrokerConfig
from millstream.core.types import TopicPartition
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

_INITIAL_EPOCH = 0
_LAST_EPOCH = 2**31 - 1
# Number of rows that each round examines without a reason: retention moves the log start here
# without an event.
_EXAMINED_PER_ROUND = 5
# Topic id and partition index.
Key = tuple[bytes, int]


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """A partition that is fetched in one leader epoch."""

    partition: Partition
    leader_epoch: int
    not_before_s: float = 0.0
    # The next delay if the leader responds that it is not the leader in this epoch.
    between_epochs_s: float = 0.02

    @property
    def current(self) -> bool:
        return self.partition.leader_epoch == self.leader_epoch and self.partition.log is not None

    @property
    def flush_due(self) -> bool:
        return self.current and self.partition.online_log.flush_due

    @property
    def has_volatile_log_start(self) -> bool:
        """Whether a crash would bring back records that were deleted here."""
        log = self.partition.log
        return self.current and log is not None and log.durable_log_start < log.log_start_offset

    def row(self, max_bytes: int) -> FetchPartition:
        log = self.partition.online_log
        return FetchPartition(
            partition=self.partition.tp.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.epochs.epoch_of(log.log_end_offset - 1)
            if log.log_end_offset
            else -1,
            # The leader answers DeleteRecords by it, and decides whether this replica may join the
            # ISR.
            log_start_offset=log.durable_log_start,
            partition_max_bytes=max_bytes,
            high_watermark=log.high_watermark,
        )


class _SentRow(NamedTuple):
    """The row of a partition that the leader has, and for which epoch it was sent."""

    followed: FollowedPartition
    row: FetchPartition


def is_throttled(partition: Partition, node_id: int, throttle: Throttle) -> bool:
    """Return whether a replica is throttled: reassignment traffic is, an ISR member never."""
    return node_id not in partition.isr and throttle.concerns(partition.tp)


class FollowerSession:
    """The partitions fetched from one leader, and the state of the session."""

    def __init__(self, node_id: int, config: BrokerConfig, throttle: Throttle) -> None:
        self._node_id = node_id
        self._config = config
        self._throttle = throttle
        self.followed: dict[TopicPartition, FollowedPartition] = {}
        self._keys: dict[Key, TopicPartition] = {}
        self._session_id = 0
        self._session_epoch = _INITIAL_EPOCH
        # The rows that the leader has.
        self._sent: dict[TopicPartition, _SentRow] = {}
        # Rows that may have changed, rows that are held back for a time, and the next rows to
        # examine in turn.
        self._stale: dict[TopicPartition, None] = {}
        self._held_back: dict[TopicPartition, None] = {}
        self._turns: Iterator[TopicPartition] = iter(())
        # Partitions that the leader should remove from the session.
        self._dropped: dict[Key, None] = {}

    def add(self, partition: Partition) -> bool:
        """Fetch a partition in its current epoch; return False if that is so already."""
        tp = partition.tp
        known = self.followed.get(tp)
        if (
            known is not None
            and known.partition is partition
            and known.current
            and tp in self._sent
        ):
            return False
        if known is None or known.partition is not partition or not known.current:
            self.followed[tp] = FollowedPartition(partition, partition.leader_epoch)
        self._keys[partition.topic_id, tp.partition] = tp
        self._stale[tp] = None
        return True

    def remove(self, tp: TopicPartition) -> bool:
        """Stop fetching a partition; return False if it was not fetched."""
        followed = self.followed.pop(tp, None)
        if followed is None:
            return False
        topic_id = followed.partition.topic_id
        self._keys.pop((topic_id, tp.partition), None)
        self._drop(tp, topic_id)
        return True

    def _drop(self, tp: TopicPartition, topic_id: bytes) -> None:
        """Let the leader remove a partition from the session."""
        if self._sent.pop(tp, None) is not None:
            self._dropped[topic_id, tp.partition] = None

    def end(self) -> None:
        """Start over: the next request has all rows.

        It also names the session that it ends, so that the leader need not keep it.
        """
        self._session_epoch = _INITIAL_EPOCH
        self._sent.clear()
        self._dropped.clear()
        self._stale.update(dict.fromkeys(self.followed))

    # ---- the next request ----

    def to_flush(self) -> list[FollowedPartition]:
        """Return the partitions that must be flushed before the next request."""
        now_s = asyncio.get_running_loop().time()
        return [
            followed
            for tp in self._stale | self._held_back
            if (followed := self.followed.get(tp)) is not None
            and followed.flush_due
            and followed.not_before_s <= now_s
        ]

    def has_volatile_log_starts(self) -> bool:
        return any(
            (followed := self.followed.get(tp)) is not None and followed.has_volatile_log_start
            for tp in self._stale
        )

    def changed_rows(self) -> list[tuple[bytes, FetchPartition]]:
        """Return the rows that have changed, with their topic ids.

        Rows that are held back are removed from the session.
        """
        examined = self._stale | self._held_back | self._next_in_turn()
        self._stale.clear()
        self._held_back.clear()
        rows = []
        max_bytes = self._config.integer("replica.fetch.max.bytes")
        for tp in examined:
            followed = self.followed.get(tp)
            if followed is None:
                continue
            topic_id = followed.partition.topic_id
            if not followed.current:
                self._drop(tp, topic_id)
            elif not self._is_due(followed):
                self._drop(tp, topic_id)
                self._held_back[tp] = None
            else:
                if followed.has_volatile_log_start:
                    self._stale[tp] = None
                sent = _SentRow(followed, followed.row(max_bytes))
                if self._sent.get(tp) != sent:
                    self._sent[tp] = sent
                    rows.append((topic_id, sent.row))
        return rows

    def _next_in_turn(self) -> dict[TopicPartition, None]:
        examined = dict.fromkeys(islice(self._turns, _EXAMINED_PER_ROUND))
        if len(examined) < _EXAMINED_PER_ROUND:
            self._turns = iter(list(self.followed))
        return examined

    def _is_due(self, followed: FollowedPartition) -> bool:
        if followed.flush_due or followed.not_before_s > asyncio.get_running_loop().time():
            return False
        throttle = self._throttle
        throttled = throttle.active and is_throttled(followed.partition, self._node_id, throttle)
        return not (throttled and throttle.exceeded)

    @property
    def is_empty(self) -> bool:
        """Whether the leader has no row, so that there is nothing to wait for."""
        return not self._sent

    def request(self, rows: list[tuple[bytes, FetchPartition]], broker_epoch: int) -> FetchRequest:
        config = self._config
        topics: dict[bytes, FetchTopic] = {}
        for topic_id, row in rows:
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(row)
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in self._dropped:
            if self._keys.get((topic_id, index)) not in self._sent:
                forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(
                    index
                )
        self._dropped.clear()
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=self._max_wait_ms(),
            min_bytes=config.integer("replica.fetch.min.bytes"),
            max_bytes=config.integer("replica.fetch.response.max.bytes"),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    def _max_wait_ms(self) -> int:
        """Return how long the leader may wait: until a row is no longer held back."""
        wait_s = self._config.integer("replica.fetch.wait.max.ms") / 1000
        now_s = asyncio.get_running_loop().time()
        for tp in self._held_back:
            followed = self.followed.get(tp)
            if followed is not None and followed.not_before_s > now_s:
                wait_s = min(wait_s, followed.not_before_s - now_s)
        return math.ceil(wait_s * 1000)

    # ---- the response ----

    def on_response(self, session_id: int) -> None:
        self._session_id = session_id
        self._session_epoch = 1 if self._session_epoch == _LAST_EPOCH else self._session_epoch + 1

    def partition_of(self, topic_id: bytes, index: int) -> TopicPartition | None:
        return self._keys.get((topic_id, index))

    def take(self, tp: TopicPartition) -> FollowedPartition | None:
        """Return the partition of a response's row, or None if the row is outdated.

        The partition may have got another leader, or another log, since the request was sent.
        """
        self._stale[tp] = None
        sent, followed = self._sent.get(tp), self.followed.get(tp)
        if (
            sent is None
            or followed is None
            or sent.followed is not followed
            or not followed.current
        ):
            return None
        return followed
