"""Writes the outcome of a transaction to its partitions: control batches, retried until durable.

Markers for partitions that are led here are written in the turn of the call, others by the broker
that leads them. A deleted partition needs no marker. One that cannot take it now is retried until
it can, at whichever broker leads it by then, because a decided outcome is never undone. The markers
of a shard that moved away are cancelled: its next leader sends them again with a higher coordinator
epoch. A coordinator that learns of that epoch stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from millstream.cluster.coordinators.peers import Codes
from millstream.cluster.events import NO_LISTENER, MarkerEvents
from millstream.cluster.replicas.manager import ReplicaManager
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.watermark_waits import wait_high_watermark
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.producers.state import Origin
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.clock import Clock
from millstream.ports.turns import Pace
from millstream.transactions.effects import SendMarkers
from millstream.wire.records.batch import build_marker

log = logging.getLogger("millstream.markers")

_RETRY_S = 0.2
_WAIT_S = 30.0
_UNKNOWN_PARTITION = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
# Errors that come with every change of leader, and are not worth a warning.
_TRANSIENT = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


class WrittenMarker(NamedTuple):
    """A marker in the log of a partition; another leader may put another record at its offset."""

    partition: Partition
    offset: int
    leader_since_epoch: int


class RemoteLeaders(Protocol):
    """The other brokers, and the leader of each partition."""

    node_id: int

    def leader(self, tp: TopicPartition) -> int: ...

    async def write_markers(
        self, node: int, outcome: SendMarkers, partitions: Sequence[TopicPartition]
    ) -> Codes: ...


class _Fenced(Exception):
    """Another broker coordinates the transaction."""


class MarkerSender:
    """Writes markers, and reports when all of an outcome are durable."""

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        remote: RemoteLeaders | None = None,
        events: MarkerEvents = NO_LISTENER,
    ) -> None:
        """Without ``remote`` all partitions are led here."""
        self._replicas = replicas
        self._rate_limited = RateLimitedLog(log)
        self._clock = clock
        self._remote = remote
        self._events = events
        self._tasks: dict[int, set[asyncio.Task[None]]] = defaultdict(set)

    def send(self, shard: int, outcome: SendMarkers, done: Callable[[], None]) -> None:
        """Call ``done`` when every marker is durable, at once if there is nothing to wait for."""
        try:
            left, written = self._write_locally(list(outcome.partitions), outcome)
        except _Fenced:
            return
        if not left and all(_is_durable(row) for row in written):
            done()
            return
        task = asyncio.get_running_loop().create_task(
            self._write_rest(left, written, outcome, done)
        )
        self._tasks[shard].add(task)
        task.add_done_callback(self._tasks[shard].discard)

    def cancel(self, shard: int) -> None:
        for task in list(self._tasks.pop(shard, ())):
            task.cancel()

    def close(self) -> None:
        for shard in list(self._tasks):
            self.cancel(shard)

    async def _write_rest(
        self,
        left: list[TopicPartition],
        written: list[WrittenMarker],
        outcome: SendMarkers,
        done: Callable[[], None],
    ) -> None:
        """Retry until every marker is below the high watermark.

        A marker that is lost in a failover would leave the transaction open forever.
        """
        try:
            while left := await self._wait_and_forward(left, written, outcome):
                await asyncio.sleep(_RETRY_S)
                left, written = self._write_locally(left, outcome)
        except _Fenced:
            return
        done()

    async def _wait_and_forward(
        self, left: list[TopicPartition], written: list[WrittenMarker], outcome: SendMarkers
    ) -> list[TopicPartition]:
        """Wait for markers written here, and send the others; return the partitions to retry."""
        retry: list[TopicPartition] = []
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in left:
            node = self._remote_leader(tp)
            if node is None:
                retry.append(tp)
            else:
                by_node.setdefault(node, []).append(tp)
        outcomes = await asyncio.gather(
            self._wait_for(written),
            *(self._write_remotely(node, tps, outcome) for node, tps in by_node.items()),
        )
        return [*retry, *(tp for failed in outcomes for tp in failed)]

    async def _wait_for(self, written: list[WrittenMarker]) -> list[TopicPartition]:
        failed = []
        for row in [row for row in written if not _is_durable(row)]:
            try:
                await wait_high_watermark(*row, _WAIT_S)
            except ApiError:
                failed.append(row.partition.tp)
        return failed

    async def _write_remotely(
        self, node: int, partitions: list[TopicPartition], outcome: SendMarkers
    ) -> list[TopicPartition]:
        """Let another broker write markers; return the partitions where it did not."""
        assert self._remote is not None
        try:
            codes = await self._remote.write_markers(node, outcome, partitions)
        except (ApiError, OSError) as error:
            log.info(
                "the markers of %s at broker %d are retried: %s",
                outcome.transactional_id,
                node,
                error,
            )
            return partitions
        failed = []
        for tp in partitions:
            code = codes.get(tp, ErrorCode.NETWORK_EXCEPTION)
            # The other broker's metadata may be older or newer. The image of this one decides
            # whether a partition exists.
            if code and (
                code in _UNKNOWN_PARTITION or not self._is_obsolete(tp, outcome, ApiError(code))
            ):
                failed.append(tp)
        return failed

    def _remote_leader(self, tp: TopicPartition) -> int | None:
        """Return the broker that leads a partition; None if this one or none does."""
        if self._remote is None:
            return None
        try:
            node = self._remote.leader(tp)
        except ApiError:
            return None  # deleted: the next round notices
        return node if node not in (NO_LEADER, self._remote.node_id) else None

    def _is_obsolete(self, tp: TopicPartition, outcome: SendMarkers, error: ApiError) -> bool:
        """Return whether the partition no longer needs this marker; otherwise it is retried."""
        if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            log.warning(
                "no more markers for %s: another coordinator wrote to %s",
                outcome.transactional_id,
                tp,
            )
            raise _Fenced
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            log.warning("no marker for %s in %s: %s", outcome.transactional_id, tp, error.message)
            return True
        text = f"the marker of {outcome.transactional_id} in {tp} is retried: {error.message}"
        if error.code in _TRANSIENT:
            log.debug("%s", text)
        else:
            self._rate_limited.log(logging.WARNING, error.code.name, text)
        return False

    def _write_locally(
        self, partitions: list[TopicPartition], outcome: SendMarkers
    ) -> tuple[list[TopicPartition], list[WrittenMarker]]:
        """Write markers of partitions led here; return the partitions left, and the markers."""
        left: list[TopicPartition] = []
        written: list[WrittenMarker] = []
        for tp in partitions:
            # Only the image knows that a partition was deleted. During startup, one may not be
            # hosted yet.
            if self._replicas.is_deleted(tp):
                continue
            if self._remote_leader(tp) is not None:
                left.append(tp)
                continue
            try:
                written.append(self.append(tp, outcome))
            except ApiError as error:
                if error.code in _UNKNOWN_PARTITION or not self._is_obsolete(tp, outcome, error):
                    left.append(tp)
        return left, written

    # ---- for remote coordinators ----

    async def write(self, outcomes: Sequence[SendMarkers]) -> list[dict[TopicPartition, ErrorCode]]:
        """Write markers for a remote coordinator; return the codes, NONE if a marker is durable.

        All are written before the first is awaited.
        """
        pace, loop = Pace(), asyncio.get_running_loop()
        results: list[dict[TopicPartition, ErrorCode]] = []
        written: list[tuple[dict[TopicPartition, ErrorCode], WrittenMarker]] = []
        for outcome in outcomes:
            codes: dict[TopicPartition, ErrorCode] = {}
            results.append(codes)
            for tp in outcome.partitions:
                codes[tp] = ErrorCode.NONE
                try:
                    written.append((codes, self.append(tp, outcome)))
                except ApiError as error:
                    codes[tp] = error.code
                await pace.rest()
        deadline = loop.time() + _WAIT_S
        for codes, row in written:
            try:
                if not _is_durable(row):
                    await wait_high_watermark(*row, deadline - loop.time())
            except ApiError as error:
                codes[row.partition.tp] = error.code
            await pace.rest()
        return results

    def append(self, tp: TopicPartition, outcome: SendMarkers) -> WrittenMarker:
        """Write one marker and return its position; raise ApiError on failure."""
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
        self._events.marker_written(tp, result.last_offset, outcome.producer_id, outcome.commit)
        return WrittenMarker(partition, result.last_offset, partition.leader_since_epoch)


def _is_durable(written: WrittenMarker) -> bool:
    partition, offset, leader_since_epoch = written
    if partition.log is None or partition.leader_since_epoch != leader_since_epoch:
        return False
    return partition.log.high_watermark > offset
