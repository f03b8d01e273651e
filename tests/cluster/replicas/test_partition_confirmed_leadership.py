"""Confirmed leadership: all that could lead instead have fetched since the call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.replicas.test_isr import new_log
from millstream.broker.handlers import offset_for_leader_epoch
from millstream.cluster.replicas.partition import Partition, unconfirmed_leaders
from millstream.cluster.replicas.pending_sequences import PendingSequences
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


class Session:
    """The session of a follower that has caught up."""

    last_used_ms = 0
    requests = 1
    request_pending = True


class Asked:
    """A partition that 0 leads with 1 and 2 in sync, and a caller that waits for confirmation."""

    def __init__(self, directory: Path, index: int = 0) -> None:
        log = new_log(directory / str(index))
        self.partition = Partition(
            TopicPartition("orders", index), bytes(16), log, PendingSequences(lambda: 0)
        )
        self._version = 0
        self.in_sync(0, 1, 2)
        self._asking: asyncio.Future[None] | None = None

    def in_sync(self, *nodes: int) -> None:
        self._version += 1
        state = PartitionState(0, 1, nodes, partition_epoch=self._version)
        self.partition.lead(
            0,
            state,
            (0, 1, 2),
            steady_ms=lambda: 0,
            max_lag_ms=1000,
            eligible=lambda node, epoch: True,
        )

    def fetched(self, node: int) -> None:
        self.partition.on_follower_fetch(node, 0, 0, broker_epoch=1)

    def enter_idle(self, node: int, session: Session | None = None) -> Session:
        session = session or Session()
        assert self.partition.followers is not None
        self.partition.followers.followers[node].enter_idle(session)
        return session

    def ask(self, timeout_s: float = 20.0) -> None:
        self._asking = asyncio.ensure_future(self.partition.confirm_leadership(timeout_s))

    async def not_yet(self) -> None:
        assert self._asking is not None
        await asyncio.wait([self._asking], timeout=0.03)
        assert not self._asking.done()

    async def confirmed(self) -> None:
        assert self._asking is not None
        await self._asking

    async def refusal(self) -> ErrorCode:
        assert self._asking is not None
        with pytest.raises(ApiError) as refused:
            await self._asking
        return refused.value.code


@pytest.fixture
def story(tmp_path: Path) -> Callable[[Callable[[Asked], Awaitable[None]]], None]:
    def play(test: Callable[[Asked], Awaitable[None]]) -> None:
        async def run() -> None:
            await test(Asked(tmp_path))

        asyncio.run(run())

    return play


Play = Callable[[Callable[[Asked], Awaitable[None]]], None]


def test_the_second_fetch_after_the_call_confirms(story: Play) -> None:
    async def test(asked: Asked) -> None:
        asked.ask()
        await asked.not_yet()
        for node in (1, 2, 1):
            asked.fetched(node)
            await asked.not_yet()
        asked.fetched(2)
        await asked.confirmed()

    story(test)


def test_one_request_confirms_if_the_previous_one_is_pending(story: Play) -> None:
    async def test(asked: Asked) -> None:
        first, second = asked.enter_idle(1), asked.enter_idle(2)
        asked.ask()
        await asked.not_yet()
        first.requests += 1
        await asked.not_yet()
        second.requests += 1
        await asked.confirmed()

    story(test)


def test_the_first_fetch_in_a_new_session_does_not_confirm(story: Play) -> None:
    """The connection of the session with the pending request is lost, unknown to the leader."""

    async def test(asked: Asked) -> None:
        asked.in_sync(0, 1)
        asked.enter_idle(1)
        asked.ask()
        await asked.not_yet()
        asked.fetched(1)
        await asked.not_yet()
        asked.fetched(1)
        await asked.confirmed()

    story(test)


def test_requests_of_an_ended_session_still_count(story: Play) -> None:
    async def test(asked: Asked) -> None:
        asked.in_sync(0, 1)
        session = asked.enter_idle(1)
        asked.ask()
        await asked.not_yet()
        assert asked.partition.followers is not None
        asked.partition.followers.followers[1].leave_idle(session)
        await asked.not_yet()
        session.requests += 5  # for other partitions: this one is no longer part of it
        await asked.not_yet()
        asked.fetched(1)
        await asked.confirmed()

    story(test)


def test_a_follower_that_left_the_isr_is_not_needed(story: Play) -> None:
    async def test(asked: Asked) -> None:
        asked.ask()
        await asked.not_yet()
        asked.in_sync(0)
        await asked.confirmed()

    story(test)


def test_a_deposed_leader_is_not_confirmed(story: Play) -> None:
    async def test(asked: Asked) -> None:
        asked.ask()
        await asked.not_yet()
        asked.partition.follow(PartitionState(1, 2, (1, 2), partition_epoch=9))
        assert await asked.refusal() is ErrorCode.NOT_LEADER_OR_FOLLOWER

    story(test)


def test_confirmation_times_out(story: Play) -> None:
    async def test(asked: Asked) -> None:
        asked.ask(timeout_s=0.02)
        assert await asked.refusal() is ErrorCode.REQUEST_TIMED_OUT

    story(test)


async def end_of(asked: Asked, epoch: int) -> EpochEndOffset:
    """Return the end of an epoch as OffsetForLeaderEpoch does."""
    replicas = SimpleNamespace(leader=lambda topic, index: asked.partition)
    question = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="orders",
                partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=epoch)],
            )
        ]
    )
    broker, context = SimpleNamespace(replicas=replicas), SimpleNamespace()
    answer = await offset_for_leader_epoch.handle(broker, context, question)  # type: ignore[arg-type]
    return answer.topics[0].partitions[0]


def test_a_deposed_leader_does_not_deny_a_later_epoch(
    story: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that has read in it would take that for a truncation, and reset its position."""
    monkeypatch.setattr(offset_for_leader_epoch, "_CONFIRM_S", 0.05)

    async def test(asked: Asked) -> None:
        assert (await end_of(asked, 1)).error_code == ErrorCode.NONE
        assert (await end_of(asked, 2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    story(test)


def test_a_confirmed_leader_denies_a_later_epoch(story: Play) -> None:
    """The topic was recreated, and starts at the first epoch."""

    async def test(asked: Asked) -> None:
        asking = asyncio.ensure_future(end_of(asked, 2))
        while not asking.done():
            for node in (1, 2):
                asked.fetched(node)
            await asyncio.sleep(0)
        answer = asking.result()
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (
            ErrorCode.NONE,
            -1,
            -1,
        )

    story(test)


def test_many_partitions_are_confirmed_together(tmp_path: Path) -> None:
    """One after another, a hundred idle partitions took longer than a client waits."""

    async def test() -> None:
        many = [Asked(tmp_path, index) for index in range(10)]
        session = Session()
        for asked_partition in many:
            asked_partition.in_sync(0, 1)
            asked_partition.enter_idle(1, session)
        replicas = SimpleNamespace(leader=lambda topic, index: many[index].partition)
        rows = [OffsetForLeaderPartition(partition=index, leader_epoch=2) for index in range(10)]
        question = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="orders", partitions=rows)]
        )
        broker, context = SimpleNamespace(replicas=replicas), SimpleNamespace()
        asking = asyncio.ensure_future(offset_for_leader_epoch.handle(broker, context, question))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        session.requests += 1
        answer = await asking
        errors = [(row.partition, row.error_code) for row in answer.topics[0].partitions]
        assert errors == [(index, ErrorCode.NONE) for index in range(10)]

    asyncio.run(test())


def test_each_of_many_partitions_has_its_own_error(tmp_path: Path) -> None:
    async def test() -> None:
        alone, replaced, silent = (Asked(tmp_path, index) for index in range(3))
        alone.in_sync(0)
        asking = asyncio.ensure_future(
            unconfirmed_leaders(
                [asked_partition.partition for asked_partition in (alone, replaced, silent)],
                timeout_s=0.05,
            )
        )
        await asyncio.sleep(0)
        replaced.partition.follow(PartitionState(1, 2, (1, 2), partition_epoch=9))
        assert await asking == {
            replaced.partition: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            silent.partition: ErrorCode.REQUEST_TIMED_OUT,
        }

    asyncio.run(test())
