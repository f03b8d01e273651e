"""Followers: one loop per leading broker fetches for all partitions that it leads and this broker has a replica of.

Kafka's own Fetch with a session (KIP-227), so that idle partitions cost nothing on the wire. Each partition tells the epoch of its last record; a leader with
another history says where the two parted, and the log is cut there (``replication/follower.py``). What arrives for an epoch that is over is dropped.
A round costs what has changed since the last one, not what is followed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from millstream.cluster.membership.registration import NOT_REGISTERED
from millstream.cluster.peers import Peers
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.throttles import Throttle
from millstream.control.znodes import BrokerEndpoint
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.errors import StorageError
from millstream.log.partition_log import PartitionLog
from millstream.log.producers.state import Origin
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.clock import Clock
from millstream.replication.follower import truncation_point
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from millstream.wire.records.batch import CorruptBatch, parse_header
from millstream.wire.records.layout import HEADER_SIZE

log = logging.getLogger("millstream.fetcher")

Address = Callable[[int], BrokerEndpoint | None]
Flush = Callable[[Partition], Awaitable[None]]
Persist = Callable[[], Awaitable[None]]
_INITIAL_SESSION = 0
# How long to wait when all that is followed is held back, or this broker not registered.
_HELD_S = 0.1
# So long the next fetch waits for the checkpoint of log starts; it goes out with the old ones where the disk takes longer.
_LOG_STARTS_S = 0.05
_LAST_EPOCH = 2**31 - 1
# The leader does not know the epoch yet, or no longer: its metadata or ours is about to change.
_BETWEEN_EPOCHS = {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
}
# So many rows are looked at in each round without a reason: retention moves the begin of a log here without telling.
_LOOKED_AT = 5
Key = tuple[bytes, int]


def _purpose(leader: int) -> str:
    """A connection to each leader for what is fetched from it."""
    return f"fetch {leader}"


async def _no_flush(partition: Partition) -> None:
    pass


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition on its way, in one leader epoch."""

    partition: Partition
    leader_epoch: int
    not_before_s: float = 0.0
    # How long it waits the next time that the leader says that it is not one in this epoch.
    between_epochs_s: float = 0.02

    @property
    def current(self) -> bool:
        return self.partition.leader_epoch == self.leader_epoch and self.partition.log is not None

    @property
    def flush_due(self) -> bool:
        return self.current and self.partition.online_log.flush_due

    @property
    def forgets_deletions(self) -> bool:
        """Whether a crash would bring back records that were deleted here."""
        log = self.partition.log
        return self.current and log is not None and log.durable_log_start < log.log_start_offset

    def row(self, max_bytes: int) -> FetchPartition:
        log = self.partition.online_log
        return FetchPartition(
            partition=self.partition.tp.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.epochs.epoch_of(log.log_end_offset - 1) if log.log_end_offset else -1,
            # The leader answers who deleted records by it, and takes us into the ISR.
            log_start_offset=log.durable_log_start,
            partition_max_bytes=max_bytes,
            high_watermark=log.high_watermark,
        )


class _Told(NamedTuple):
    """What the leader knows of a partition, and for whom it was told."""

    followed: _Followed
    row: FetchPartition


class ReplicaFetchers:
    """All followers of this broker, by the broker that leads them."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        config: BrokerConfig,
        clock: Clock,
        *,
        address: Address,
        broker_epoch: Callable[[], int],
        throttle: Throttle,
        log_starts_durable: Persist,
        flush: Flush = _no_flush,
    ) -> None:
        """``flush`` returns when what flush.messages demands is on the disk, ``log_starts_durable`` when all log starts are."""
        self._flush = flush
        self._log_starts_durable = log_starts_durable
        self._node_id = node_id
        self._peers = peers
        self._config = config
        self._clock = clock
        self._address = address
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._loops: dict[int, _LeaderLoop] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._closed = False

    def follow(self, partition: Partition) -> None:
        if self._closed:
            return
        leader = partition.leader
        if self._leaders.get(partition.tp) not in (None, leader):
            self.forget(partition.tp)
        loop = self._loops.get(leader)
        if loop is None:
            loop = self._loops[leader] = _LeaderLoop(
                leader,
                self._node_id,
                self._peers,
                self._config,
                self._clock,
                self._address,
                self._broker_epoch,
                self._throttle,
                self._flush,
                self._log_starts_durable,
            )
        self._leaders[partition.tp] = leader
        loop.add(partition)

    def forget(self, tp: TopicPartition) -> None:
        leader = self._leaders.pop(tp, None)
        if leader is not None:
            self._loops[leader].remove(tp)
            if self._loops[leader].idle:
                # Nothing is wanted from it any more, and it may be gone without a word: nobody waits for its last answer.
                self._peers.drop((_purpose(leader),))

    async def close(self) -> None:
        """Nothing is fetched from here on."""
        self._closed = True
        for loop in list(self._loops.values()):
            await loop.close()


class _LeaderLoop:
    """Fetches from one broker."""

    def __init__(
        self,
        leader: int,
        node_id: int,
        peers: Peers,
        config: BrokerConfig,
        clock: Clock,
        address: Address,
        broker_epoch: Callable[[], int],
        throttle: Throttle,
        flush: Flush,
        log_starts_durable: Persist,
    ) -> None:
        self._rate_limited = RateLimitedLog(log)
        self._throttle = throttle
        self._flush = flush
        self._log_starts_durable = log_starts_durable
        self._checkpointing: asyncio.Task[None] | None = None
        self._leader = leader
        self._node_id = node_id
        self._peers = peers
        self._config = config
        self._clock = clock
        self._address = address
        self._broker_epoch = broker_epoch
        self._followed: dict[TopicPartition, _Followed] = {}
        self._keys: dict[Key, TopicPartition] = {}
        # The session: what the leader knows of each partition, and what it should forget.
        self._session_id = 0
        self._session_epoch = _INITIAL_SESSION
        self._told: dict[TopicPartition, _Told] = {}
        # Rows that may have changed, rows that wait for their time, and whose turn it is to be looked at.
        self._stale: dict[TopicPartition, None] = {}
        self._held: dict[TopicPartition, None] = {}
        self._round: Iterator[TopicPartition] = iter(())
        self._dropped: dict[Key, None] = {}
        self._silent = False
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetcher of {leader}")

    def add(self, partition: Partition) -> None:
        tp = partition.tp
        known = self._followed.get(tp)
        if known is not None and known.partition is partition and known.current and tp in self._told:
            return
        if known is None or known.partition is not partition or not known.current:
            self._followed[tp] = _Followed(partition, partition.leader_epoch)
        self._keys[partition.topic_id, tp.partition] = tp
        self._stale[tp] = None
        self._changed.set()

    def remove(self, tp: TopicPartition) -> None:
        followed = self._followed.pop(tp, None)
        if followed is not None:
            topic_id = followed.partition.topic_id
            self._keys.pop((topic_id, tp.partition), None)
            self._drop(tp, topic_id)
            self._changed.set()

    def _drop(self, tp: TopicPartition, topic_id: bytes) -> None:
        """The leader need not look for it any more."""
        if self._told.pop(tp, None) is not None:
            self._dropped[topic_id, tp.partition] = None

    @property
    def idle(self) -> bool:
        return not self._followed

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, *filter(None, [self._checkpointing]), return_exceptions=True)

    # ---- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not self._followed:
                self._end_session()
                await self._changed.wait()
                continue
            try:
                await self._fetch()
                self._silent = False
            except OSError as error:
                if self.idle:
                    continue
                if not self._silent:
                    log.info("cannot fetch from broker %d: %s", self._leader, error)
                self._silent = True  # told once, until it answers again
                await self._begin_anew()
            except Exception as error:
                # Whatever it is: a loop that has ended would leave all these replicas behind, and nobody would know.
                log.error("cannot take in what broker %d sent", self._leader, exc_info=error)
                await self._begin_anew()

    async def _begin_anew(self) -> None:
        self._end_session()
        await self._pause(self._config.integer("replica.fetch.backoff.ms") / 1000)

    def _end_session(self) -> None:
        """The next request tells everything, and names the session that it ends, so that the leader need not keep it."""
        self._session_epoch = _INITIAL_SESSION
        self._told.clear()
        self._dropped.clear()
        self._stale.update(dict.fromkeys(self._followed))

    async def _pause(self, seconds: float) -> None:
        """Or until there is something new to do."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _fetch(self) -> None:
        if self._broker_epoch() == NOT_REGISTERED:
            # Whether this broker may have its id at all is not known yet: the leader would take what is fetched for its replica's.
            await self._pause(_HELD_S)
            return
        endpoint = self._address(self._leader)
        if endpoint is None:
            await self._pause(self._config.integer("replica.fetch.backoff.ms") / 1000)
            return
        await self._make_durable()
        rows = self._changed_rows()
        if not self._told:
            await self._pause(_HELD_S)
            return
        request = self._request(rows)
        timeout_s = self._config.integer("replica.socket.timeout.ms") / 1000
        answer: FetchResponse = await self._peers.ask(
            _purpose(self._leader), endpoint.host, endpoint.port, request, timeout_s=timeout_s
        )
        if answer.error_code:
            self._end_session()  # it has forgotten us, or we lost count: begin anew
            return
        self._session_id = answer.session_id
        self._session_epoch = 1 if self._session_epoch == _LAST_EPOCH else self._session_epoch + 1
        for topic in answer.responses:
            for row in topic.partitions:
                tp = self._keys.get((topic.topic_id, row.partition_index))
                if tp is not None:
                    await self._take(tp, row)
        await self._remember_deletions()
        if not answer.session_id:
            self._end_session()  # it has no room for one

    async def _make_durable(self) -> None:
        """The next fetch tells the leader what this replica has: where flush.messages is reached, what it has on the disk. That may also be what
        came from another leader, or before a restart; what cannot be written is not told."""
        now_s = asyncio.get_running_loop().time()
        due = [
            one
            for tp in self._stale | self._held
            if (one := self._followed.get(tp)) is not None and one.flush_due and one.not_before_s <= now_s
        ]
        for one, failure in zip(due, await self._flushed(due), strict=True):
            if failure is not None:
                log.info("%s is not durable yet: %s", one.partition.tp, failure)
                self._hold_back(one)

    async def _flushed(self, due: Iterable[_Followed]) -> list[BaseException | None]:
        return await asyncio.gather(*(self._flush(one.partition) for one in due), return_exceptions=True)

    async def _remember_deletions(self) -> None:
        """The same for where logs begin: whoever deleted records may be told that they are gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LOG_STARTS_S
        while (left_s := until - loop.time()) > 0 and self._any_forgets_deletions():
            if self._checkpointing is None:
                self._checkpointing = loop.create_task(self._checkpoint_log_starts())
            await asyncio.wait([self._checkpointing], timeout=left_s)

    def _any_forgets_deletions(self) -> bool:
        return any(
            (one := self._followed.get(tp)) is not None and one.forgets_deletions for tp in self._stale
        )

    async def _checkpoint_log_starts(self) -> None:
        try:
            await self._log_starts_durable()
        except ApiError as error:
            log.info("log starts are not durable yet: %s", error)
            await asyncio.sleep(_LOG_STARTS_S)
        finally:
            self._checkpointing = None

    def _changed_rows(self) -> list[tuple[bytes, FetchPartition]]:
        """What the leader has to be told: rows that have changed, with the ids of their topics. Held back ones are taken from the session."""
        looked_at = self._stale | self._held | self._next_in_turn()
        self._stale.clear()
        self._held.clear()
        rows = []
        max_bytes = self._config.integer("replica.fetch.max.bytes")
        for tp in looked_at:
            one = self._followed.get(tp)
            if one is None:
                continue
            topic_id = one.partition.topic_id
            if not one.current:
                self._drop(tp, topic_id)
            elif not self._is_due(one):
                self._drop(tp, topic_id)
                self._held[tp] = None
            else:
                if one.forgets_deletions:
                    self._stale[tp] = None
                told = _Told(one, one.row(max_bytes))
                if self._told.get(tp) != told:
                    self._told[tp] = told
                    rows.append((topic_id, told.row))
        return rows

    def _next_in_turn(self) -> dict[TopicPartition, None]:
        some = dict.fromkeys(islice(self._round, _LOOKED_AT))
        if len(some) < _LOOKED_AT:
            self._round = iter(list(self._followed))
        return some

    def _is_due(self, one: _Followed) -> bool:
        if one.flush_due or one.not_before_s > asyncio.get_running_loop().time():
            return False
        return not (self._throttle.active and self._is_throttled(one.partition) and self._throttle.exceeded)

    def _is_throttled(self, partition: Partition) -> bool:
        """Reassignment traffic only: what is in sync is never held back."""
        return self._node_id not in partition.isr and self._throttle.concerns(partition.tp)

    def _max_wait_ms(self) -> int:
        """No longer than until a row that is held back for a moment may be asked for again."""
        wait_s = self._config.integer("replica.fetch.wait.max.ms") / 1000
        now_s = asyncio.get_running_loop().time()
        for tp in self._held:
            one = self._followed.get(tp)
            if one is not None and one.not_before_s > now_s:
                wait_s = min(wait_s, one.not_before_s - now_s)
        return math.ceil(wait_s * 1000)

    def _request(self, rows: list[tuple[bytes, FetchPartition]]) -> FetchRequest:
        config = self._config
        topics: dict[bytes, FetchTopic] = {}
        for topic_id, row in rows:
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(row)
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in self._dropped:
            if self._keys.get((topic_id, index)) not in self._told:
                forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        self._dropped.clear()
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=self._max_wait_ms(),
            min_bytes=config.integer("replica.fetch.min.bytes"),
            max_bytes=config.integer("replica.fetch.response.max.bytes"),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    # ---- taking in -------------------------------------------------------------------------------

    async def _take(self, tp: TopicPartition, row: PartitionData) -> None:
        self._stale[tp] = None
        told, followed = self._told.get(tp), self._followed.get(tp)
        # In the meantime the partition may have got another leader, or another log.
        if told is None or followed is None or told.followed is not followed or not followed.current:
            return
        try:
            if row.error_code:
                self._take_error(followed, row)
            else:
                self._take_data(followed.partition, row)
        except (ApiError, CorruptBatch) as error:
            text = f"{tp} cannot follow broker {self._leader}: {error}"
            if isinstance(error, StorageError) and error.passing:
                self._rate_limited.log(logging.ERROR, "follow", text)
            else:
                log.error("%s", text)
            self._hold_back(followed)
        await asyncio.sleep(0)

    def _take_data(self, partition: Partition, row: PartitionData) -> None:
        log_ = partition.online_log
        now_ms = self._clock.now_ms()
        if row.diverging_epoch.epoch >= 0:
            self._truncate(partition, row, now_ms)
            return
        if row.records:
            if self._throttle.active and self._is_throttled(partition):
                self._throttle.record(len(row.records))
            records = memoryview(row.records)
            if log_.log_start_offset == log_.log_end_offset:
                self._begin_with(log_, records, now_ms)
            log_.append(
                records,
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
                origin=Origin.REPLICATION,
            )
        moved = log_.advance_high_watermark(row.high_watermark)
        if row.log_start_offset > log_.log_start_offset:
            log_.advance_log_start(min(row.log_start_offset, log_.high_watermark))
        if moved:
            partition.wake()

    def _begin_with(self, log_: PartitionLog, records: memoryview, now_ms: int) -> None:
        """An empty log whose first batch begins before it: records were deleted from the middle of that batch."""
        if len(records) >= HEADER_SIZE:
            first = parse_header(records)
            if first.base_offset < log_.log_end_offset <= first.last_offset:
                start = log_.log_start_offset
                log_.truncate_fully_and_start_at(first.base_offset, now_ms=now_ms)
                log.info("%s begins at %d, inside a batch from %d on", log_.tp, start, first.base_offset)

    def _truncate(self, partition: Partition, row: PartitionData, now_ms: int) -> None:
        log_ = partition.online_log
        cut = truncation_point(
            row.diverging_epoch.epoch,
            row.diverging_epoch.end_offset,
            ends=lambda epoch: log_.epochs.end_offset(epoch, log_.log_end_offset),
            log_end=log_.log_end_offset,
            high_watermark=log_.high_watermark,
        )
        level = logging.WARNING if cut < log_.high_watermark else logging.INFO
        log.log(
            level,
            "%s is cut from %d to %d, where its history parts from that of broker %d (high watermark %d)",
            partition.tp,
            log_.log_end_offset,
            cut,
            self._leader,
            log_.high_watermark,
        )
        log_.truncate_to(cut, now_ms=now_ms)

    def _take_error(self, followed: _Followed, row: PartitionData) -> None:
        code = ErrorCode.of(row.error_code)
        partition = followed.partition
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset >= 0:
            self._start_anew(partition, row)
            return
        between = code in _BETWEEN_EPOCHS
        level = logging.DEBUG if between else logging.WARNING
        log.log(level, "%s cannot be fetched from broker %d: %s", partition.tp, self._leader, code.name)
        if between:
            # Mostly it hears of the epoch a moment later than this broker, and until it is followed nobody's records are acknowledged.
            self._hold_back(followed, followed.between_epochs_s)
            followed.between_epochs_s *= 2
        else:
            self._hold_back(followed)

    def _start_anew(self, partition: Partition, row: PartitionData) -> None:
        """The leader no longer has what comes next here (retention), or never had it (an unclean election)."""
        log_ = partition.online_log
        if log_.log_end_offset < row.log_start_offset:
            log.warning(
                "%s ends at %d, and broker %d begins at %d: it starts anew from there",
                partition.tp,
                log_.log_end_offset,
                self._leader,
                row.log_start_offset,
            )
            log_.truncate_fully_and_start_at(row.log_start_offset, now_ms=self._clock.now_ms())
        else:
            cut = max(row.high_watermark, row.log_start_offset)
            log.warning("%s is cut from %d to %d", partition.tp, log_.log_end_offset, cut)
            log_.truncate_to(cut, now_ms=self._clock.now_ms())

    def _hold_back(self, followed: _Followed, most_s: float = math.inf) -> None:
        backoff_s = min(self._config.integer("replica.fetch.backoff.ms") / 1000, most_s)
        followed.not_before_s = asyncio.get_running_loop().time() + backoff_s
