"""Applies fetched data to the logs of followers: appends, truncations, and new starts."""

from __future__ import annotations

import logging

from millstream.cluster.replicas.follower_session import is_throttled
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.throttles import Throttle
from millstream.log.partition_log import PartitionLog
from millstream.log.producers.state import Origin
from millstream.ports.clock import Clock
from millstream.replication.follower import truncation_point
from millstream.wire.messages.fetch import PartitionData
from millstream.wire.records.batch import parse_header
from millstream.wire.records.layout import HEADER_SIZE

logger = logging.getLogger("millstream.fetcher")


class FollowerLogs:
    """Applies the responses of one leader."""

    def __init__(self, leader: int, node_id: int, clock: Clock, throttle: Throttle) -> None:
        self._leader = leader
        self._node_id = node_id
        self._clock = clock
        self._throttle = throttle

    def apply(self, partition: Partition, row: PartitionData) -> None:
        """Append the records of a row, or truncate if the leader's history is another."""
        log = partition.online_log
        now_ms = self._clock.now_ms()
        if row.diverging_epoch.epoch >= 0:
            self._truncate(partition, row, now_ms)
            return
        if row.records:
            if self._throttle.active and is_throttled(partition, self._node_id, self._throttle):
                self._throttle.record(len(row.records))
            records = memoryview(row.records)
            if log.log_start_offset == log.log_end_offset:
                self._start_before(log, records, now_ms)
            log.append(
                records,
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
                origin=Origin.REPLICATION,
            )
        advanced = log.advance_high_watermark(row.high_watermark)
        if row.log_start_offset > log.log_start_offset:
            log.advance_log_start(min(row.log_start_offset, log.high_watermark))
        if advanced:
            partition.waiters.wake()

    def _start_before(self, log: PartitionLog, records: memoryview, now_ms: int) -> None:
        """Move the start of an empty log back to its first batch, if that begins before it.

        Records were deleted from the middle of that batch.
        """
        if len(records) >= HEADER_SIZE:
            first = parse_header(records)
            if first.base_offset < log.log_end_offset <= first.last_offset:
                start = log.log_start_offset
                log.truncate_fully_and_start_at(first.base_offset, now_ms=now_ms)
                logger.info(
                    "%s starts at %d, inside a batch from %d on", log.tp, start, first.base_offset
                )

    def _truncate(self, partition: Partition, row: PartitionData, now_ms: int) -> None:
        log = partition.online_log
        offset = truncation_point(
            row.diverging_epoch.epoch,
            row.diverging_epoch.end_offset,
            ends=lambda epoch: log.epochs.end_offset(epoch, log.log_end_offset),
            log_end=log.log_end_offset,
            high_watermark=log.high_watermark,
        )
        level = logging.WARNING if offset < log.high_watermark else logging.INFO
        logger.log(
            level,
            "%s is truncated from %d to %d, where its history diverges from broker %d (high watermark %d)",
            partition.tp,
            log.log_end_offset,
            offset,
            self._leader,
            log.high_watermark,
        )
        log.truncate_to(offset, now_ms=now_ms)

    def start_over(self, partition: Partition, row: PartitionData) -> None:
        """Continue where the leader has records, after OFFSET_OUT_OF_RANGE.

        The leader no longer has the next records (retention), or never had them (an unclean
        election).
        """
        log = partition.online_log
        if log.log_end_offset < row.log_start_offset:
            logger.warning(
                "%s ends at %d, and broker %d starts at %d: it starts over from there",
                partition.tp,
                log.log_end_offset,
                self._leader,
                row.log_start_offset,
            )
            log.truncate_fully_and_start_at(row.log_start_offset, now_ms=self._clock.now_ms())
        else:
            offset = max(row.high_watermark, row.log_start_offset)
            logger.warning(
                "%s is truncated from %d to %d", partition.tp, log.log_end_offset, offset
            )
            log.truncate_to(offset, now_ms=self._clock.now_ms())
