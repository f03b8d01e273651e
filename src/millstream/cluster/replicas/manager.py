"""The replicas on this broker, as request handlers and the log use them.

The image decides which replicas exist and who leads them; ``hosting`` makes it so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from millstream.cluster.events import NO_LISTENER, ReplicaEvents
from millstream.cluster.replicas.hosting import HostedPartitions, ReplicaHosting
from millstream.cluster.replicas.log_configs import LogConfigs
from millstream.cluster.replicas.log_opening import ReplicaLogs
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences, producer_batch
from millstream.cluster.replicas.roles import Fetchers, NoFetchers, ReplicaRoles
from millstream.cluster.replicas.watermark_waits import wait_low_watermark
from millstream.control.image import ClusterImage
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.log.state import LogState
from millstream.ports.clock import Clock, steady_ms


class ReplicaManager:
    """Finds the partitions of this broker, and connects them with their logs."""

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        config: BrokerConfig,
        logs: LogManager,
        housekeeping: Housekeeping,
        clock: Clock,
        *,
        log_configs: LogConfigs,
        fetchers: Fetchers | None = None,
        events: ReplicaEvents = NO_LISTENER,
    ) -> None:
        """``fetchers`` fetch the records of replicas that other brokers lead."""
        steady = partial(steady_ms, clock)
        self._node_id = node_id
        self._image = image
        self._logs = logs
        self._housekeeping = housekeeping
        self.partitions: HostedPartitions = {}
        self.pending = PendingSequences(steady)
        self.roles = ReplicaRoles(node_id, image, config, steady, fetchers or NoFetchers(), events)
        self.replica_logs = ReplicaLogs(image, logs, log_configs, self.pending, self.roles)
        self.hosting = ReplicaHosting(
            node_id,
            image,
            logs,
            log_configs,
            self.partitions,
            self.replica_logs,
            self.roles,
            events,
        )

    # ---- lookup ----

    def leader(self, topic: str, index: int) -> Partition:
        """Return the partition if this broker leads it.

        Otherwise raise the ApiError that redirects the client.
        """
        partition = self.replica(topic, index)
        if partition.leader != self._node_id:
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if partition.log else ErrorCode.KAFKA_STORAGE_ERROR
            )
            raise ApiError(code)
        return partition

    def leader_by_id(self, topic_id: bytes, index: int) -> Partition:
        return self.leader(self.name_of(topic_id), index)

    def replica(self, topic: str, index: int) -> Partition:
        """Return the partition if this broker hosts it, whichever broker leads it.

        The image may be ahead of the hosted partitions. The remains of an earlier topic of that
        name are not the requested partition, neither by name nor by id.
        """
        try:
            partition, known = self.partitions[topic][index], self._image.topics[topic]
        except KeyError:
            raise ApiError(self._absence(topic, index)) from None
        if partition.topic_id != known.topic_id:
            raise ApiError(self._absence(topic, index))
        if partition.log is None:
            self.replica_logs.retry(partition)
        return partition

    def hosted(self, topic: str, index: int) -> Partition | None:
        """Return the partition if this broker hosts it, also of an earlier topic of that name."""
        return self.partitions.get(topic, {}).get(index)

    def _absence(self, topic: str, index: int) -> ErrorCode:
        """Return why there is no such partition here: other brokers host it, or none does."""
        known = self._image.topics.get(topic)
        if known is not None and index in known.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def current_leader(self, topic: str, index: int) -> tuple[int, int] | None:
        """Return the leader and its epoch, as far as this broker knows."""
        hosted = self.hosted(topic, index)
        if hosted is not None:
            return hosted.leader, hosted.leader_epoch
        known = self._image.topics.get(topic)
        state = known.states.get(index) if known is not None else None
        return (state.leader, state.leader_epoch) if state is not None else None

    def name_of(self, topic_id: bytes) -> str:
        name = self._image.names_by_id.get(topic_id)
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    def is_online(self, topic: str, index: int, node: int) -> bool:
        """Return whether a replica can serve; the image knows it of other brokers' replicas."""
        if node != self._node_id:
            offline = self._image.offline.get(node, ())
            return node in self._image.brokers and TopicPartition(topic, index) not in offline
        partition = self.hosted(topic, index)
        return partition is not None and partition.log is not None

    def others_in_sync(self, tp: TopicPartition) -> bool:
        """Return whether another broker has the whole partition, and could lead it."""
        partition = self.hosted(tp.topic, tp.partition)
        isr = partition.isr if partition is not None else ()
        return any(node != self._node_id and self.is_online(*tp, node) for node in isr)

    def full(self) -> Collection[TopicPartition]:
        """Return the replicas in directories without room, if the partition has other replicas."""
        paths = self._logs.full.paths
        if not paths:
            return ()
        return [
            tp
            for tp, log in self._logs.logs.items()
            if log.log_dir in paths
            and (topic := self._image.topics.get(tp.topic)) is not None
            and len(topic.replicas.get(tp.partition, ())) > 1
        ]

    def is_deleted(self, tp: TopicPartition) -> bool:
        """Return whether no broker has such a partition any more."""
        topic = self._image.topics.get(tp.topic)
        return topic is None or tp.partition not in topic.replicas

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self.partitions.values())

    # ---- records ----

    def record_rejection(
        self, topic: str | bytes, index: int, records: memoryview, error: ApiError
    ) -> None:
        """Record a batch that did not reach its partition, which may not be hosted here yet.

        Batches behind it get the same error.
        """
        batch = producer_batch(records)
        if batch is not None:
            name = self._image.names_by_id.get(topic, topic) if isinstance(topic, bytes) else topic
            self.pending.record_rejection(name, index, batch, error)

    async def flush_if_due(self, partition: Partition) -> None:
        """Flush the log if flush.messages requires acknowledged records on disk."""
        log = partition.online_log
        if log.flush_due:
            await self._housekeeping.flush(log)

    async def log_starts_durable(self) -> None:
        """Return when all log starts are durable: a crash must not undo an answered deletion."""
        await self._housekeeping.log_starts_durable()

    async def wait_low_watermark(
        self, partition: Partition, offset: int, leader_since_epoch: int, timeout_s: float
    ) -> None:
        """Wait until no replica on a live broker has records before this offset."""
        await wait_low_watermark(
            partition,
            offset,
            leader_since_epoch,
            timeout_s,
            node_id=self._node_id,
            live=lambda: self._image.brokers.keys(),
        )

    # ---- events of the logs ----

    def flushed(self, log: LogState) -> None:
        """Advance the high watermark of a leader, which may have waited for this flush."""
        partition = self._led(log)
        if partition is not None:
            partition.advance_high_watermark()

    def truncation_finished(self, log: LogState) -> None:
        """Start the leader epoch that an interrupted truncation had delayed."""
        partition = self._led(log)
        if partition is not None:
            partition.begin_epoch()
            partition.waiters.wake()

    def _led(self, log: LogState) -> Partition | None:
        """Return the partition of a log if this broker leads it.

        A follower's high watermark is set by its leader, whatever is flushed here.
        """
        partition = self.partitions.get(log.tp.topic, {}).get(log.tp.partition)
        leads = partition is not None and partition.log is log and partition.leader == self._node_id
        return partition if leads else None

    def went_offline(self, partitions: Sequence[TopicPartition]) -> None:
        """Take the logs from replicas whose directory failed, or that are damaged."""
        for tp in partitions:
            partition = self.hosted(tp.topic, tp.partition)
            if partition is not None:
                self.replica_logs.went_offline(partition)
