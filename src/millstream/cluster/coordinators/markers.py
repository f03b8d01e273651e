"""Carries the outcome of a transaction into its partitions: control batches, written until they are durable.

Partitions that are led here get theirs in the turn of the call, others through the broker that leads them. A partition that is gone
needs no marker; one that cannot take it now is tried again until it can, with whoever leads it by then, because a decided outcome is
never taken back. Markers of a shard that was dropped are called off: whoever leads it next sends them anew, under a higher coordinator
epoch, and a coordinator that hears of that epoch stops.
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
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
# Answers that come with every change of a leader, and of which nobody needs to hear.
_PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


class Written(NamedTuple):
    """A marker in the log of a partition, written in a leader's reign: later the offset may hold something else."""

    partition: Partition
    offset: int
    reign: int


class Elsewhere(Protocol):
    """The other brokers, and who leads what."""

    node_id: int

    def leader(self, tp: TopicPartition) -> int: ...

    async def write_markers(
        self, node: int, outcome: SendMarkers, partitions: Sequence[TopicPartition]
    ) -> Codes: ...


class _Fenced(Exception):
    """Another broker coordinates the transaction."""


class MarkerSender:
    """Writes markers, and tells when all of an outcome are durable."""

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        elsewhere: Elsewhere | None = None,
        events: MarkerEvents = NO_LISTENER,
    ) -> None:
        """Without ``elsewhere`` everything is led here."""
        self._replicas = replicas
        self._rate_limited = RateLimitedLog(log)
        self._clock = clock
        self._elsewhere = elsewhere
        self._events = events
        self._tasks: dict[int, set[asyncio.Task[None]]] = defaultdict(set)

    def send(self, shard: int, outcome: SendMarkers, done: Callable[[], None]) -> None:
        """Calls ``done`` when every marker is durable; at once where nothing has to be waited for."""
        try:
            left, written = self._write_here(list(outcome.partitions), outcome)
        except _Fenced:
            return
        if not left and all(_safe(row) for row in written):
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
        try:
            while left := await self._settle(left, written, outcome):
                await asyncio.sleep(_RETRY_S)
                left, written = self._write_here(left, outcome)
        except _Fenced:
            return
        done()

    async def _settle(
        self, left: list[TopicPartition], written: list[Written], outcome: SendMarkers
    ) -> list[TopicPartition]:
        """Waits for what was written here, and has written what is led elsewhere; returns what is to be tried again."""
        again: list[TopicPartition] = []
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in left:
            node = self._leader_elsewhere(tp)
            if node is None:
                again.append(tp)
            else:
                by_node.setdefault(node, []).append(tp)
        rounds = await asyncio.gather(
            self._wait_for(written), *(self._write_at(node, tps, outcome) for node, tps in by_node.items())
        )
        return [*again, *(tp for failed in rounds for tp in failed)]

    async def _wait_for(self, written: list[Written]) -> list[TopicPartition]:
        failed = []
        for row in [row for row in written if not _safe(row)]:
            try:
                await self._replicas.wait_high_watermark(*row, _WAIT_S)
            except ApiError:
                failed.append(row.partition.tp)
        return failed

    async def _write_at(
        self, node: int, partitions: list[TopicPartition], outcome: SendMarkers
    ) -> list[TopicPartition]:
        """Those that the other broker did not write."""
        assert self._elsewhere is not None
        try:
            codes = await self._elsewhere.write_markers(node, outcome, partitions)
        except (ApiError, OSError) as error:
            log.info("the markers of %s at broker %d wait: %s", outcome.transactional_id, node, error)
            return partitions
        failed = []
        for tp in partitions:
            code = codes.get(tp, ErrorCode.NETWORK_EXCEPTION)
            # That it knows no such partition may be old news or early ones: our own image decides.
            if code and (code in _GONE or not self._needless(tp, outcome, ApiError(code))):
                failed.append(tp)
        return failed

    def _leader_elsewhere(self, tp: TopicPartition) -> int | None:
        """None where it is led here, or by nobody."""
        if self._elsewhere is None:
            return None
        try:
            node = self._elsewhere.leader(tp)
        except ApiError:
            return None  # gone: the next round finds out
        return node if node not in (NO_LEADER, self._elsewhere.node_id) else None

    def _needless(self, tp: TopicPartition, outcome: SendMarkers, error: ApiError) -> bool:
        """Whether the partition needs no marker of this outcome any more; else it is tried again."""
        if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            log.warning(
                "no more markers for %s: another coordinator wrote to %s", outcome.transactional_id, tp
            )
            raise _Fenced
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            log.warning("no marker for %s in %s: %s", outcome.transactional_id, tp, error.message)
            return True
        text = f"the marker of {outcome.transactional_id} in {tp} waits: {error.message}"
        if error.code in _PASSING:
            log.debug("%s", text)
        else:
            self._rate_limited.log(logging.WARNING, error.code.name, text)
        return False

    def _write_here(
        self, partitions: list[TopicPartition], outcome: SendMarkers
    ) -> tuple[list[TopicPartition], list[Written]]:
        """Those that could not be written, and those that were."""
        left: list[TopicPartition] = []
        written: list[Written] = []
        for tp in partitions:
            # Only the image knows that a partition is gone; one that is not here yet, in the midst of a start, will come.
            if self._replicas.is_gone(tp):
                continue
            if self._leader_elsewhere(tp) is not None:
                left.append(tp)
                continue
            try:
                written.append(self.append(tp, outcome))
            except ApiError as error:
                if error.code in _GONE or not self._needless(tp, outcome, error):
                    left.append(tp)
        return left, written

    # ---- here ------------------------------------------------------------------------------------

    async def write(self, outcomes: Sequence[SendMarkers]) -> list[dict[TopicPartition, ErrorCode]]:
        """For a coordinator elsewhere: for each outcome NONE for each marker that is durable.

        All are written before the first is waited for.
        """
        pace, loop = Pace(), asyncio.get_running_loop()
        results: list[dict[TopicPartition, ErrorCode]] = []
        written: list[tuple[dict[TopicPartition, ErrorCode], Written]] = []
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
                if not _safe(row):
                    await self._replicas.wait_high_watermark(*row, deadline - loop.time())
            except ApiError as error:
                codes[row.partition.tp] = error.code
            await pace.rest()
        return results

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
        self._events.marker_written(tp, result.last_offset, outcome.producer_id, outcome.commit)
        return Written(partition, result.last_offset, partition.reign)


def _safe(written: Written) -> bool:
    partition, offset, reign = written
    if partition.log is None or partition.reign != reign:
        return False
    return partition.log.high_watermark > offset
