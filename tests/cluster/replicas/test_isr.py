"""Proposals that delay the high watermark, and end doing so without a fetch or an append."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.cluster.replicas.isr import IsrManager
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.clock import SystemClock, steady_ms
from millstream.replication.leader import IsrProposal
from millstream.wire.records.batch import Record, build_batch
from support.cluster.host_world import new_log

MAX_LAG_MS = 100
PATIENCE_S = 120.0
CLOCK = SystemClock()


def now_ms() -> int:
    return steady_ms(CLOCK)


def leading(directory: Path) -> Partition:
    """A partition led here; 1 is in sync, 2 has all records and may join."""
    partition = Partition(
        TopicPartition("orders", 0), bytes(16), new_log(directory), PendingSequences(lambda: 0)
    )
    lead(partition, PartitionState(0, 1, (0, 1)))
    return partition


def lead(partition: Partition, state: PartitionState, *, max_lag_ms: int = MAX_LAG_MS) -> None:
    partition.lead(
        0,
        state,
        (0, 1, 2),
        steady_ms=now_ms,
        max_lag_ms=max_lag_ms,
        eligible=lambda node, epoch: True,
    )


def proposing(directory: Path) -> tuple[Partition, IsrProposal]:
    """The same with a proposal to add 2, and a record since then that 2 does not have."""
    partition = leading(directory)
    partition.max_lag_ms = 0
    partition.steady_ms = lambda: now_ms() - 1000
    proposal = partition.on_follower_fetch(2, 0, 0, broker_epoch=7)
    partition.steady_ms = now_ms
    assert proposal is not None
    append(partition)
    return partition, proposal


def fetched(partition: Partition, node: int) -> None:
    assert partition.log is not None
    end = partition.log.log_end_offset
    partition.on_follower_fetch(node, end, 0, broker_epoch=7)


def append(partition: Partition) -> None:
    records = memoryview(bytearray(build_batch([Record(0, 0, None, b"v")])))
    partition.append(records, now_ms=CLOCK.now_ms(), needs_all=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)


async def turns() -> None:
    """Let more turns pass than a request takes, in no time."""
    for _ in range(20):
        await asyncio.sleep(0)


def managed(
    partition: Partition, ask: Callable[[Sequence[IsrRequest]], Awaitable[dict]]
) -> IsrManager:
    return IsrManager(ask, led=lambda: [partition], max_lag_ms=lambda: MAX_LAG_MS)


def test_a_silent_joining_follower_stops_delaying_high_watermark(tmp_path: Path) -> None:
    """The other follower has fetched the record and waits: no more events of this partition."""

    async def nobody(requests: Sequence[IsrRequest]) -> dict:
        raise ApiError(ErrorCode.NOT_CONTROLLER)

    async def story() -> None:
        partition = leading(tmp_path)
        assert partition.log is not None and partition.followers is not None
        fetched(partition, 2)
        partition.followers.on_rejected()
        append(partition)
        fetched(partition, 1)
        assert partition.log.high_watermark == 0
        running = asyncio.create_task(managed(partition, nobody).run())
        await until(lambda: partition.log.high_watermark == 1)  # type: ignore[union-attr]
        running.cancel()

    asyncio.run(story())


def test_a_rejected_proposal_does_not_delay_the_high_watermark(tmp_path: Path) -> None:
    async def refuse(requests: Sequence[IsrRequest]) -> dict:
        return {(bytes(16), 0): ErrorCode.INELIGIBLE_REPLICA}

    async def story() -> None:
        partition, proposal = proposing(tmp_path)
        assert partition.log is not None
        fetched(partition, 1)
        assert partition.log.high_watermark == 0  # 2 may be in the ISR by now
        manager = managed(partition, refuse)
        running = asyncio.create_task(manager._send_proposals())
        manager.propose(partition, proposal)
        await until(lambda: partition.log.high_watermark == 1)  # type: ignore[union-attr]
        running.cancel()

    asyncio.run(story())


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, id="made-and-its-answer-lost"),
        pytest.param(ErrorCode.NEW_LEADER_ELECTED, id="it-ended-a-reassignment"),
        pytest.param(ErrorCode.FENCED_LEADER_EPOCH, id="another-leads"),
    ],
)
def test_an_outdated_proposal_stays_in_flight_until_the_feed_decides(
    tmp_path: Path, outcome: ErrorCode
) -> None:
    """The proposal may be in force: a record that 2 lacks could be lost in the next election."""
    asked = asyncio.Event()

    async def behind(requests: Sequence[IsrRequest]) -> dict:
        asked.set()
        return {(bytes(16), 0): outcome}

    async def story() -> None:
        partition, proposal = proposing(tmp_path)
        assert partition.log is not None
        manager = managed(partition, behind)
        running = asyncio.create_task(manager._send_proposals())
        manager.propose(partition, proposal)
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        await asyncio.sleep(0)
        fetched(partition, 1)
        assert partition.log.high_watermark == 0
        lead(
            partition, PartitionState(0, 1, (0, 1), partition_epoch=1), max_lag_ms=0
        )  # the feed: it was never applied
        assert partition.log.high_watermark == 1
        running.cancel()

    asyncio.run(story())


def test_a_follower_beyond_the_leaders_log_end_is_rejected(tmp_path: Path) -> None:
    """After an unclean election its records are not the leader's, and its log will be truncated."""

    async def story() -> None:
        partition = leading(tmp_path)
        with pytest.raises(ApiError) as refused:
            partition.on_follower_fetch(2, 5, 0, broker_epoch=7)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition.followers is not None and partition.followers.proposal is None

    asyncio.run(story())


@pytest.mark.parametrize(
    "outcome", [{(bytes(16), 0): ErrorCode.NOT_CONTROLLER}, {}], ids=["a-row", "no-row"]
)
def test_an_undecided_proposal_is_retried_without_delaying_others(
    tmp_path: Path, outcome: dict[tuple[bytes, int], ErrorCode]
) -> None:
    ours, theirs = bytes(16), b"o" * 16
    asked: list[set[bytes]] = []

    async def answer(requests: Sequence[IsrRequest]) -> dict:
        asked.append({request.topic_id for request in requests})
        await asyncio.sleep(0)
        return outcome

    async def story() -> None:
        partition, proposal = proposing(tmp_path / "a")
        other, another = proposing(tmp_path / "b")
        other.tp, other.topic_id = TopicPartition("others", 0), theirs
        manager = managed(partition, answer)
        running = asyncio.create_task(manager._send_proposals())
        manager.propose(partition, proposal)
        await turns()
        assert asked == [{ours}]
        manager.propose(other, another)
        await turns()
        assert asked == [{ours}, {theirs}]
        await until(lambda: set().union(*asked[2:]) == {ours, theirs})
        running.cancel()

    asyncio.run(story())
