"""Whoever waits for the high watermark waits for the record that was appended, not for whatever is at its offset in the end.

A leader appends a record and is replaced before anybody has it; the new leader puts another record at that offset, and the old one follows it. Its high
watermark passes the offset then, and nobody may be told that his record is safe.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.cluster.coordinators.markers import WrittenMarker, _is_durable
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.cluster.replicas.watermark_waits import wait_high_watermark
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.producers.state import Origin
from millstream.wire.records.batch import Record, build_batch
from support.cluster.host_world import new_log

PATIENCE_S = 120.0


def records(offset: int = 0) -> memoryview:
    batch = build_batch([Record(offset, 0, None, b"v")], base_offset=offset, leader_epoch=2)
    return memoryview(bytearray(batch))


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    """Led here in epoch 1, with a record that the other replica does not have."""
    made = Partition(TopicPartition("orders", 0), bytes(16), new_log(tmp_path), PendingSequences(lambda: 0))
    lead(made, 1, 0)
    return made


def lead(partition: Partition, epoch: int, version: int) -> None:
    state = PartitionState(0, epoch, (0, 1), partition_epoch=version)
    partition.lead(0, state, (0, 1), steady_ms=lambda: 0, max_lag_ms=1000, eligible=lambda node, epoch: True)


def append(partition: Partition) -> int:
    return partition.append(records(), now_ms=0, needs_all=True).last_offset


def replaced(partition: Partition) -> None:
    """Another leads in epoch 2, and what it has at the offset of our record is committed."""
    log = partition.online_log
    partition.follow(PartitionState(1, 2, (0, 1), partition_epoch=1))
    log.truncate_to(0, now_ms=0)
    log.append(records(), leader_epoch=2, now_ms=0, origin=Origin.REPLICATION)
    log.advance_high_watermark(1)
    partition.waiters.wake()


async def wait(partition: Partition, offset: int, leader_since_epoch: int) -> ErrorCode:
    try:
        await wait_high_watermark(partition, offset, leader_since_epoch, PATIENCE_S)
    except ApiError as error:
        return ErrorCode.of(error.code)
    return ErrorCode.NONE


def test_who_begins_to_wait_when_another_leads_already_is_not_told_that_his_record_is_safe(
    partition: Partition,
) -> None:
    """As a request with records for several partitions, which are waited for one after the other."""

    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        replaced(partition)
        return await wait(partition, offset, leader_since_epoch)

    assert asyncio.run(story()) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_waits_while_another_begins_to_lead_is_not_told_so_either(partition: Partition) -> None:
    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        waiting = asyncio.create_task(wait(partition, offset, leader_since_epoch))
        await asyncio.sleep(0)
        replaced(partition)  # all of it before the waiting one has its turn
        return await waiting

    assert asyncio.run(story()) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_waits_for_a_record_that_the_replicas_have_is_told(partition: Partition) -> None:
    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        waiting = asyncio.create_task(wait(partition, offset, leader_since_epoch))
        await asyncio.sleep(0)
        partition.on_follower_fetch(1, 1, 0, broker_epoch=1)
        replaced(partition)  # too late to matter
        return await waiting

    assert asyncio.run(story()) is ErrorCode.NONE


@pytest.mark.parametrize("epoch, told", [(2, ErrorCode.NONE), (3, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_who_waits_while_the_same_leader_begins_an_epoch_waits_on_unless_another_may_have_led_between(
    partition: Partition, epoch: int, told: ErrorCode
) -> None:
    """A replica that goes begins an epoch (2). Another leader in between would have had one of its own, and this one then the next (3)."""

    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        waiting = asyncio.create_task(wait(partition, offset, leader_since_epoch))
        await asyncio.sleep(0)
        lead(partition, epoch, 1)
        await asyncio.sleep(0)
        partition.on_follower_fetch(1, 1, 0, broker_epoch=1)
        return await waiting

    assert asyncio.run(story()) is told


def test_what_was_fetched_in_the_epoch_before_says_nothing_in_the_next(partition: Partition) -> None:
    async def story() -> None:
        append(partition)
        lead(partition, 2, 1)
        with pytest.raises(ApiError) as fenced:
            partition.check_epoch(1)
        assert fenced.value.code is ErrorCode.FENCED_LEADER_EPOCH
        assert partition.online_log.high_watermark == 0

    asyncio.run(story())


def test_a_marker_is_not_safe_because_something_else_is_at_its_offset(partition: Partition) -> None:
    async def story() -> None:
        written = WrittenMarker(partition, append(partition), partition.leader_since_epoch)
        assert not _is_durable(written)
        replaced(partition)
        assert not _is_durable(written)

    asyncio.run(story())
