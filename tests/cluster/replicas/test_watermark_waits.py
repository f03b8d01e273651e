"""A wait for the high watermark is for the appended record, not for any record at its offset.

A leader appends a record and is deposed before any replica has it. The new leader puts another
record at that offset, and the old one follows. Then its high watermark passes the offset, but the
first record is lost.
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
    """A partition led here in epoch 1, with a record that the other replica does not have."""
    made = Partition(
        TopicPartition("orders", 0), bytes(16), new_log(tmp_path), PendingSequences(lambda: 0)
    )
    lead(made, 1, 0)
    return made


def lead(partition: Partition, epoch: int, version: int) -> None:
    state = PartitionState(0, epoch, (0, 1), partition_epoch=version)
    partition.lead(
        0, state, (0, 1), steady_ms=lambda: 0, max_lag_ms=1000, eligible=lambda node, epoch: True
    )


def append(partition: Partition) -> int:
    return partition.append(records(), now_ms=0, needs_all=True).last_offset


def replaced(partition: Partition) -> None:
    """Let another broker lead in epoch 2, with a committed record at the same offset."""
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


def test_wait_that_starts_after_a_leader_change_fails(
    partition: Partition,
) -> None:
    """A request with records for several partitions waits for one after the other."""

    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        replaced(partition)
        return await wait(partition, offset, leader_since_epoch)

    assert asyncio.run(story()) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_wait_during_a_leader_change_fails(partition: Partition) -> None:
    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        waiting = asyncio.create_task(wait(partition, offset, leader_since_epoch))
        await asyncio.sleep(0)
        replaced(partition)  # all of it before the waiter has its turn
        return await waiting

    assert asyncio.run(story()) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_wait_succeeds_when_the_replicas_have_the_record(partition: Partition) -> None:
    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        waiting = asyncio.create_task(wait(partition, offset, leader_since_epoch))
        await asyncio.sleep(0)
        partition.on_follower_fetch(1, 1, 0, broker_epoch=1)
        replaced(partition)  # too late to matter
        return await waiting

    assert asyncio.run(story()) is ErrorCode.NONE


@pytest.mark.parametrize(
    "epoch, expected", [(2, ErrorCode.NONE), (3, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_wait_continues_in_the_next_epoch_of_the_same_leader(
    partition: Partition, epoch: int, expected: ErrorCode
) -> None:
    """Removing a replica starts an epoch (2).

    Another leader in between would have had that epoch, and this one the next (3).
    """

    async def story() -> ErrorCode:
        offset, leader_since_epoch = append(partition), partition.leader_since_epoch
        waiting = asyncio.create_task(wait(partition, offset, leader_since_epoch))
        await asyncio.sleep(0)
        lead(partition, epoch, 1)
        await asyncio.sleep(0)
        partition.on_follower_fetch(1, 1, 0, broker_epoch=1)
        return await waiting

    assert asyncio.run(story()) is expected


def test_fetches_of_an_earlier_epoch_do_not_count_in_the_next(partition: Partition) -> None:
    async def story() -> None:
        append(partition)
        lead(partition, 2, 1)
        with pytest.raises(ApiError) as fenced:
            partition.check_epoch(1)
        assert fenced.value.code is ErrorCode.FENCED_LEADER_EPOCH
        assert partition.online_log.high_watermark == 0

    asyncio.run(story())


def test_a_marker_replaced_at_its_offset_is_not_durable(partition: Partition) -> None:
    async def story() -> None:
        written = WrittenMarker(partition, append(partition), partition.leader_since_epoch)
        assert not _is_durable(written)
        replaced(partition)
        assert not _is_durable(written)

    asyncio.run(story())
