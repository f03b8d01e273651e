"""Followers: one loop per leading broker fetches for all partitions that this broker follows there.

The request is Kafka's own Fetch in a session, so idle partitions cost nothing on the wire. Each row
names the epoch of the last record. A leader with another history responds where the two diverge,
and the log is truncated there (``replication/follower.py``). Responses for an older epoch are
dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from millstream.cluster.membership.registration import NOT_REGISTERED
from millstream.cluster.peers import Peers
from millstream.cluster.replicas.follower_logs import FollowerLogs
from millstream.cluster.replicas.follower_session import FollowedPartition, FollowerSession
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.throttles import Throttle
from millstream.control.znodes import BrokerEndpoint
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.errors import StorageError
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.clock import Clock
from millstream.wire.messages.fetch import FetchResponse, PartitionData
from millstream.wire.records.batch import CorruptBatch

log = logging.getLogger("millstream.fetcher")

Address = Callable[[int], BrokerEndpoint | None]
Flush = Callable[[Partition], Awaitable[None]]
Persist = Callable[[], Awaitable[None]]
# Pause while all partitions are held back, or this broker is not registered.
_HELD_BACK_S = 0.1
# Maximum delay of the next fetch for the checkpoint of log starts. If the disk takes longer, the
# fetch is sent with the old ones.
_LOG_STARTS_S = 0.05
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


def _purpose(leader: int) -> str:
    """Return the purpose of the connection for fetches from a leader."""
    return f"fetch {leader}"


async def _no_flush(partition: Partition) -> None:
    pass


class ReplicaFetchers:
    """All fetch loops of this broker, by leader."""

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
        """``flush`` makes the records of a partition durable, as flush.messages demands.

        ``log_starts_durable`` makes all log starts durable.
        """
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
                # The leader may have failed silently; do not wait for its last response.
                self._peers.drop((_purpose(leader),))

    async def close(self) -> None:
        """Stop fetching."""
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
        self._flush = flush
        self._log_starts_durable = log_starts_durable
        self._checkpointing: asyncio.Task[None] | None = None
        self._leader = leader
        self._node_id = node_id
        self._peers = peers
        self._config = config
        self._address = address
        self._broker_epoch = broker_epoch
        self.session = FollowerSession(node_id, config, throttle)
        self._logs = FollowerLogs(leader, node_id, clock, throttle)
        self._failing = False
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"fetcher of {leader}"
        )

    def add(self, partition: Partition) -> None:
        if self.session.add(partition):
            self._changed.set()

    def remove(self, tp: TopicPartition) -> None:
        if self.session.remove(tp):
            self._changed.set()

    @property
    def idle(self) -> bool:
        return not self.session.followed

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(
            self._task, *filter(None, [self._checkpointing]), return_exceptions=True
        )

    # ---- the loop ----

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if self.idle:
                self.session.end()
                await self._changed.wait()
                continue
            try:
                await self._fetch()
                self._failing = False
            except OSError as error:
                if self.idle:
                    continue
                if not self._failing:
                    log.info("cannot fetch from broker %d: %s", self._leader, error)
                self._failing = True  # log once until the next success
                await self._start_over()
            except Exception as error:
                # Catch everything: if the loop ended, all these replicas would fall behind
                # unnoticed.
                log.error("cannot process the response of broker %d", self._leader, exc_info=error)
                await self._start_over()

    async def _start_over(self) -> None:
        self.session.end()
        await self._pause(self._config.integer("replica.fetch.backoff.ms") / 1000)

    async def _pause(self, seconds: float) -> None:
        """Wait for this time, or until a partition is added or removed."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _fetch(self) -> None:
        if self._broker_epoch() == NOT_REGISTERED:
            # This broker may not have the right to its id. The leader would take its fetches for
            # those of the real replica.
            await self._pause(_HELD_BACK_S)
            return
        endpoint = self._address(self._leader)
        if endpoint is None:
            await self._pause(self._config.integer("replica.fetch.backoff.ms") / 1000)
            return
        session = self.session
        await self._make_durable()
        rows = session.changed_rows()
        if session.is_empty:
            await self._pause(_HELD_BACK_S)
            return
        request = session.request(rows, self._broker_epoch())
        timeout_s = self._config.integer("replica.socket.timeout.ms") / 1000
        response: FetchResponse = await self._peers.ask(
            _purpose(self._leader), endpoint.host, endpoint.port, request, timeout_s=timeout_s
        )
        if response.error_code:
            session.end()  # the leader has evicted the session, or the epochs do not match
            return
        session.on_response(response.session_id)
        for topic in response.responses:
            for row in topic.partitions:
                tp = session.partition_of(topic.topic_id, row.partition_index)
                if tp is not None:
                    await self._take(tp, row)
        await self._persist_log_starts()
        if not response.session_id:
            session.end()  # the leader has no room for a session

    async def _make_durable(self) -> None:
        """Flush partitions before the next fetch, which reports their records to the leader.

        If flush.messages is reached, only records on disk count. They may also be from another
        leader, or from before a restart. A partition that cannot be flushed is held back.
        """
        partitions = self.session.to_flush()
        results = await asyncio.gather(
            *(self._flush(followed.partition) for followed in partitions), return_exceptions=True
        )
        for followed, failure in zip(partitions, results, strict=True):
            if failure is not None:
                log.info("%s is not durable yet: %s", followed.partition.tp, failure)
                self._hold_back(followed)

    async def _persist_log_starts(self) -> None:
        """Make log starts durable before the next fetch, which reports them to the leader.

        The leader may then answer the client that deleted the records.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _LOG_STARTS_S
        while (left_s := until - loop.time()) > 0 and self.session.has_volatile_log_starts():
            if self._checkpointing is None:
                self._checkpointing = loop.create_task(self._checkpoint_log_starts())
            await asyncio.wait([self._checkpointing], timeout=left_s)

    async def _checkpoint_log_starts(self) -> None:
        try:
            await self._log_starts_durable()
        except ApiError as error:
            log.info("log starts are not durable yet: %s", error)
            await asyncio.sleep(_LOG_STARTS_S)
        finally:
            self._checkpointing = None

    # ---- responses ----

    async def _take(self, tp: TopicPartition, row: PartitionData) -> None:
        followed = self.session.take(tp)
        if followed is None:
            return
        try:
            if row.error_code:
                self._take_error(followed, row)
            else:
                self._logs.apply(followed.partition, row)
        except (ApiError, CorruptBatch) as error:
            text = f"{tp} cannot follow broker {self._leader}: {error}"
            if isinstance(error, StorageError) and error.temporary:
                self._rate_limited.log(logging.ERROR, "follow", text)
            else:
                log.error("%s", text)
            self._hold_back(followed)
        await asyncio.sleep(0)

    def _take_error(self, followed: FollowedPartition, row: PartitionData) -> None:
        code = ErrorCode.of(row.error_code)
        partition = followed.partition
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset >= 0:
            self._logs.start_over(partition, row)
            return
        between_epochs = code in _BETWEEN_EPOCHS
        level = logging.DEBUG if between_epochs else logging.WARNING
        log.log(
            level, "%s cannot be fetched from broker %d: %s", partition.tp, self._leader, code.name
        )
        if between_epochs:
            # Mostly the leader learns of the epoch a moment later than this broker. Until it is
            # followed it acknowledges no records, so the first delays are short.
            self._hold_back(followed, followed.between_epochs_s)
            followed.between_epochs_s *= 2
        else:
            self._hold_back(followed)

    def _hold_back(self, followed: FollowedPartition, max_s: float = math.inf) -> None:
        backoff_s = min(self._config.integer("replica.fetch.backoff.ms") / 1000, max_s)
        followed.not_before_s = asyncio.get_running_loop().time() + backoff_s
