"""Carries the outcome of a transaction into its partitions: control batches, written until they are durable.

A partition that is gone needs no marker; one that is offline is tried again until it is back, because a decided outcome is never taken
back. Markers of a shard that was dropped are called off: the shard sends them anew when it is loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from millstream.cluster.partition import Partition
from millstream.cluster.replica_manager import ReplicaManager
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.producer_state import Origin
from millstream.ports.clock import Clock
from millstream.transactions.effects import SendMarkers
from millstream.wire.batch import build_marker

log = logging.getLogger("millstream.markers")

_RETRY_S = 0.5
_WAIT_S = 30.0
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


# A marker: its partition and its offset there.
Written = tuple[Partition, int]


class MarkerSender:
    """Writes markers, and tells when all of an outcome are durable."""

    def __init__(self, replicas: ReplicaManager, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        # Told after each marker in a partition of an internal topic.
        self.on_marker: dict[str, Callable[[int, int, bool], None]] = {}
        self._tasks: dict[int, set[asyncio.Task[None]]] = defaultdict(set)

    def send(self, shard: int, outcome: SendMarkers, done: Callable[[], None]) -> None:
        """Calls ``done`` when every marker is durable; at once where nothing has to be waited for."""
        left, written = self._write_all(list(outcome.partitions), outcome)
        if not left and all(self._safe(row) for row in written):
            done()
            return
        task = asyncio.get_running_loop().create_task(self._write_rest(left, written, outcome, done))
        self._tasks[shard].add(task)
        task.add_done_callback(self._tasks[shard].discard)

    def call_off(self, shard: int) -> None:
        for task in list(self._tasks.pop(shard, ())):
            task.cancel()

    def close(self) -> None:
        for shard in list(self._tasks):
            self.call_off(shard)

    async def _write_rest(
        self,
        left: list[TopicPartition],
        written: list[Written],
        outcome: SendMarkers,
        done: Callable[[], None],
    ) -> None:
        """Until every marker lies below the high watermark: one that a fail-over could take back would leave the
        transaction open for ever."""
        while True:
            for partition, offset in [row for row in written if not self._safe(row)]:
                try:
                    await self._replicas.wait_high_watermark(partition, offset, _WAIT_S)
                except ApiError:
                    left.append(partition.tp)
            if not left:
                break
            await asyncio.sleep(_RETRY_S)
            left, written = self._write_all(left, outcome)
        done()

    def _write_all(
        self, partitions: list[TopicPartition], outcome: SendMarkers
    ) -> tuple[list[TopicPartition], list[Written]]:
        """Those that could not be written, and those that were."""
        left: list[TopicPartition] = []
        written: list[Written] = []
        for tp in partitions:
            try:
                written.append(self.append(tp, outcome))
            except ApiError as error:
                if not _needless(tp, outcome, error):
                    left.append(tp)
        return left, written

    @staticmethod
    def _safe(written: Written) -> bool:
        partition, offset = written
        return partition.log is not None and partition.log.high_watermark > offset

    def append(self, tp: TopicPartition, outcome: SendMarkers) -> Written:
        """Writes one marker and tells where; raises ApiError where it cannot be."""
        partition = self._replicas.leader(tp.topic, tp.partition)
        now_ms = self._clock.now_ms()
        marker = build_marker(
            base_offset=0,
            leader_epoch=partition.leader_epoch,
            producer_id=outcome.producer_id,
            producer_epoch=outcome.producer_epoch,
            coordinator_epoch=outcome.coordinator_epoch,
            commit=outcome.commit,
            timestamp=now_ms,
        )
        result = partition.append(
            memoryview(bytearray(marker)),
            now_ms=now_ms,
            needs_all=True,
            origin=Origin.COORDINATOR,
            transaction_version=outcome.transaction_version,
        )
        told = self.on_marker.get(tp.topic)
        if told is not None:
            told(tp.partition, outcome.producer_id, outcome.commit)
        return partition, result.last_offset


def _needless(tp: TopicPartition, outcome: SendMarkers, error: ApiError) -> bool:
    """Whether the partition needs no marker of this outcome any more; else it is tried again."""
    if error.code in _GONE:
        return True
    if error.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        log.warning("no marker for %s in %s: %s", outcome.transactional_id, tp, error.message)
        return True
    log.warning("the marker of %s in %s waits: %s", outcome.transactional_id, tp, error.message)
    return False
