"""What holds the high watermark up, and lets it go again without anybody fetching or appending."""

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
    """Led here; 1 is in sync, 2 has everything and may join."""
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
    """2 is to join, and a record has come since that it does not have."""
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
        while not condition():  # noqa: ASYNC110 - the thing under test wakes nobody here
            await asyncio.sleep(0.01)


async def turns() -> None:
    """More than a request takes here, and in no time."""
    for _ in range(20):
        await asyncio.sleep(0)


def managed(partition: Partition, ask: Callable[[Sequence[IsrRequest]], Awaitable[dict]]) -> IsrManager:
    return IsrManager(ask, led=lambda: [partition], max_lag_ms=lambda: MAX_LAG_MS)


def test_a_follower_that_was_about_to_join_and_falls_silent_holds_nothing_up(tmp_path: Path) -> None:
    """The other follower has fetched the record already and waits: nothing of this partition happens any more."""

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


def test_a_refused_proposal_holds_nothing_up(tmp_path: Path) -> None:
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
    "told",
    [
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, id="made-and-its-answer-lost"),
        pytest.param(ErrorCode.NEW_LEADER_ELECTED, id="it-ended-a-reassignment"),
        pytest.param(ErrorCode.FENCED_LEADER_EPOCH, id="another-leads"),
    ],
)
def test_who_is_told_to_be_behind_waits_for_the_proposed_until_the_feed_tells(
    tmp_path: Path, told: ErrorCode
) -> None:
    """The proposal may be in force: a record that 2 does not have would be lost with the next election."""
    asked = asyncio.Event()

    async def behind(requests: Sequence[IsrRequest]) -> dict:
        asked.set()
        return {(bytes(16), 0): told}

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
        )  # the feed: it was never made
        assert partition.log.high_watermark == 1
        running.cancel()

    asyncio.run(story())


def test_who_ends_behind_the_leader_is_not_in_sync(tmp_path: Path) -> None:
    """After an unclean election: its records are not the leader's, and its log is about to be cut."""

    async def story() -> None:
        partition = leading(tmp_path)
        with pytest.raises(ApiError) as refused:
            partition.on_follower_fetch(2, 5, 0, broker_epoch=7)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition.followers is not None and partition.followers.proposal is None

    asyncio.run(story())


@pytest.mark.parametrize("told", [{(bytes(16), 0): ErrorCode.NOT_CONTROLLER}, {}], ids=["a-row", "no-row"])
def test_who_gets_no_answer_to_a_proposal_asks_again_after_a_while_and_others_do_not_wait_for_it(
    tmp_path: Path, told: dict[tuple[bytes, int], ErrorCode]
) -> None:
    ours, theirs = bytes(16), b"o" * 16
    asked: list[set[bytes]] = []

    async def answer(requests: Sequence[IsrRequest]) -> dict:
        asked.append({request.topic_id for request in requests})
        await asyncio.sleep(0)
        return told

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
