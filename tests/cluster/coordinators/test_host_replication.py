"""A coordinator host and the replicas of its partition: too few of them, and slow ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.cluster.coordinators import host
from millstream.core.decisions import CoordinatorRecord, Decision
from millstream.core.errors import ErrorCode as E
from millstream.log.partition_log import PartitionLog
from support.cluster.host_world import (
    CountingShard,
    FaultyPartition,
    World,
    code_of,
    new_log,
    until,
)

MakePartition = Callable[[], FaultyPartition]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = new_log(tmp_path)
    made.update_config(replace(made.config, min_insync_replicas=2))
    yield made
    made.close(clean=True)


@pytest.fixture
def partition(log: PartitionLog) -> MakePartition:
    """A partition with two replicas; ``commit`` lets the other one have all records."""
    return lambda: FaultyPartition(log, alone=False)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_RETRY_S", 0.001)


def test_too_few_replicas_reject_the_decision_and_keep_the_shard(partition: MakePartition) -> None:
    """The shard keeps its state, timers and waiters, and decides when the replicas are back."""

    async def story() -> None:
        world, here = World(), partition()
        world.host.lead(here)
        waiting = world.count("before")
        here.isr = (0,)
        assert code_of(world.count("during")) is E.COORDINATOR_NOT_AVAILABLE
        assert len(world.shards) == 1 and world.shard.durable == {"before": 1}
        here.isr = (0, 1)
        after = world.count("after")
        here.commit()
        assert (await waiting, await after) == (1, 1)
        assert world.resigned == []
        world.host.close()

    asyncio.run(story())


def test_a_timer_decision_is_retried(partition: MakePartition) -> None:
    async def story() -> None:
        world, here = World(), partition()
        world.host.lead(here)
        here.isr = (0,)
        world.host.call(0, lambda shard, waiter, now_ms: shard.decide_arm("late", waiter, now_ms))
        await until(lambda: len(world.shard.fired) > 2, "some attempts")
        assert world.shard.durable == {}
        here.isr = (0, 1)
        await until(lambda: world.shard.durable, "the decision")
        fired = len(world.shard.fired)
        await asyncio.sleep(0.01)
        assert len(world.shard.fired) == fired
        world.host.close()

    asyncio.run(story())


def test_a_timer_of_a_dropped_shard_does_not_fire(partition: MakePartition) -> None:
    """Neither one that is due nor one that would be retried."""

    async def story() -> None:
        world, here = World(), partition()
        world.host.lead(here)
        here.isr = (0,)
        shard = world.shard
        world.host.call(0, lambda shard, waiter, now_ms: shard.decide_arm("late", waiter, now_ms))
        world.host.call(
            0, lambda shard, waiter, now_ms: shard.decide_arm("later", waiter, now_ms + 5)
        )
        await until(lambda: shard.fired, "the first attempt")
        world.host.resign(0)
        fired = len(shard.fired)
        here.isr = (0, 1)
        await asyncio.sleep(0.03)
        assert len(shard.fired) == fired and here.online_log.log_end_offset == 0

    asyncio.run(story())


class Resuming(CountingShard):
    """A shard that has to write something when it is loaded."""

    def on_loaded(self, *, now_ms: int) -> Decision:
        self.loaded += 1
        return Decision((CoordinatorRecord("resumed", self.durable.get("resumed", 0) + 1),))


def test_a_shard_serves_no_client_before_it_has_resumed(partition: MakePartition) -> None:
    """Unfinished work comes before anything else; records appended in the meantime are read."""

    async def story() -> None:
        first, here = World(), partition()
        first.host.lead(here)
        first.count("before")
        here.append_marker(7, commit=True)
        first.host.close()
        world = World()
        world.host._make_shard = lambda index, epoch: Resuming()
        here.isr = (0,)
        world.host.lead(here)
        slot = world.host._slots[0]
        await until(lambda: slot.shard.loaded > 2, "some attempts")  # type: ignore[attr-defined]
        assert code_of(world.count("during")) is E.COORDINATOR_LOAD_IN_PROGRESS
        here.isr = (0, 1)
        await until(lambda: not world.host.loading, "the shard")
        assert slot.shard.durable == {"before": 1, "resumed": 1}  # type: ignore[attr-defined]
        world.host.close()

    asyncio.run(story())


def test_a_response_that_waits_too_long_is_a_retriable_error(partition: MakePartition) -> None:
    """Outward effects keep waiting, and are sent once when the replicas have the records."""

    async def story() -> None:
        world, here = World(commit_timeout_s=lambda: 0.01), partition()
        world.host.lead(here)
        late = [world.count("a"), world.count("b")]
        await until(lambda: all(future.done() for future in late), "the time")
        assert [code_of(future) for future in late] == [E.COORDINATOR_NOT_AVAILABLE] * 2
        assert world.sent == []
        in_time = world.count("c")
        here.commit()
        assert await in_time == 1 and world.sent == ["a", "b", "c"]
        world.host.close()

    asyncio.run(story())


def test_a_marker_is_not_visible_before_it_is_durable(partition: MakePartition) -> None:
    async def story() -> None:
        world, here = World(), partition()
        world.host.lead(here)
        pending = world.host.call(
            0, lambda shard, waiter, now_ms: shard.decide_pending("name", waiter, 7)
        )
        here.commit()
        await pending
        here.append_marker(7, commit=True)
        world.host.marker_written(0, here.online_log.log_end_offset - 1, 7, True)
        look = world.look("name")
        await asyncio.sleep(0.01)
        assert not look.done()
        here.commit()
        assert await look == 1
        world.host.close()

    asyncio.run(story())
