"""The host of coordinator shards: replies, failed appends, loading, markers and timers."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core.decisions import CoordinatorRecord, Decision
from millstream.core.errors import ErrorCode as E
from millstream.log.errors import StorageError
from millstream.log.partition_log import PartitionLog
from support.cluster.host_world import (
    CountingShard,
    FaultyPartition,
    World,
    code_of,
    new_log,
    until,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = new_log(tmp_path)
    yield made
    made.close(clean=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_response_comes_when_its_record_is_in_the_log(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log))
        assert await world.count("a") == 1
        assert await world.count("a") == 2
        assert (log.log_end_offset, world.shard.durable) == (2, {"a": 2})
        assert (world.shard.seen, world.sent) == (["a", "a"], ["a", "a"])
        world.host.close()

    asyncio.run(story())


def test_effects_wait_until_the_high_watermark_passes(log: PartitionLog) -> None:
    """Reads that would reveal it wait as well; the shard's memory changes at once."""

    async def story() -> None:
        world, partition = World(), FaultyPartition(log, alone=False)
        world.host.lead(partition)
        counted, looked = world.count("a"), world.look("a")
        await asyncio.sleep(0)
        assert (counted.done(), looked.done(), world.sent, world.shard.seen) == (
            False,
            False,
            [],
            ["a"],
        )
        again = world.count("a")
        partition.commit()
        assert (await counted, await looked, await again) == (1, 1, 2)
        assert world.sent == ["a", "a"]
        world.host.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
    ],
    ids=lambda code: code.name,
)
def test_a_failed_append_leaves_no_trace(log: PartitionLog, failure: E, expected: E) -> None:
    """The shard is reloaded from its log, as it was; other waiters must find a coordinator."""

    async def story() -> None:
        world, partition = World(), FaultyPartition(log, alone=False)
        world.host.lead(partition)
        first = world.count("a")
        partition.commit()
        await first
        before = dict(world.shard.durable)
        waiting = world.count("b")
        partition.fail = failure
        rejected = world.count("c")
        assert code_of(rejected) is expected
        assert code_of(waiting) is E.NOT_COORDINATOR
        assert world.resigned == [0]
        partition.fail = None
        partition.commit()
        await until(lambda: not world.host.loading, "the shard to be read again")
        assert len(world.shards) == 2
        # "b" reached the log without a response; "c" did not.
        assert world.shard.durable == before | {"b": 1}
        counted = world.count("c")
        partition.commit()
        assert await counted == 1
        world.host.close()

    asyncio.run(story())


def test_a_record_that_is_too_large_is_rejected_without_a_reload(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log))
        await world.count("a")
        assert code_of(world.count("x" * 2_000_000)) is E.UNKNOWN_SERVER_ERROR
        assert (len(world.shards), world.shard.durable, log.log_end_offset) == (1, {"a": 1}, 1)
        assert await world.count("a") == 2
        world.host.close()

    asyncio.run(story())


def test_a_rejected_transactional_append_does_not_reload_the_shard(log: PartitionLog) -> None:
    async def story() -> None:
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        partition.fail = E.INVALID_PRODUCER_EPOCH
        rejected = world.host.call(
            0, lambda shard, waiter, now: shard.decide_pending("p", waiter, 7)
        )
        assert code_of(rejected) is E.INVALID_PRODUCER_EPOCH
        partition.fail = None
        assert (len(world.shards), world.shard.pending, await world.look("a")) == (1, {}, 1)
        world.host.close()

    asyncio.run(story())


def test_a_loading_shard_responds_load_in_progress(log: PartitionLog) -> None:
    async def story() -> None:
        first = World()
        first.host.lead(FaultyPartition(log))
        for _ in range(500):
            await first.count("a")
        first.host.close()
        world = World()
        world.host.lead(FaultyPartition(log))
        assert world.host.loading and world.host.shards() == []
        assert code_of(world.look("a")) is E.COORDINATOR_LOAD_IN_PROGRESS
        assert code_of(world.look("a", index=1)) is E.NOT_COORDINATOR
        world.host.run(0, lambda shard, now: 1 / 0)  # ignored while loading
        await until(lambda: not world.host.loading, "the shard to be read")
        assert (world.shard.durable, world.shard.loaded, await world.look("a")) == (
            {"a": 500},
            1,
            500,
        )
        world.host.close()

    asyncio.run(story())


def test_replay_restores_the_live_shard(log: PartitionLog) -> None:
    """Records, pending ones, their markers, and records of a type unknown to this version."""

    async def story() -> None:
        first, partition = World(), FaultyPartition(log)
        first.host.lead(partition)
        for name in ("a", "b", "a", "c"):
            await first.count(name)
        for name, producer_id in (("kept", 7), ("dropped", 8), ("open", 9)):
            await first.host.call(
                0,
                lambda shard, waiter, now, n=name, p=producer_id: shard.decide_pending(
                    n, waiter, p
                ),
            )
        for producer_id, commit in ((7, True), (8, False)):
            partition.append_marker(producer_id, commit=commit)
            first.shard.apply_marker(producer_id, commit)
        await first.count("?unknown")
        del first.shard.durable["?unknown"]
        live = (first.shard.durable, first.shard.pending)
        assert live == ({"a": 2, "b": 1, "c": 1, "kept": 1}, {9: {"open": 1}})
        first.host.close()
        world = World()
        world.host.lead(FaultyPartition(log))
        await until(lambda: not world.host.loading, "the shard to be read")
        assert (world.shard.durable, world.shard.pending) == live
        world.host.close()

    asyncio.run(story())


def test_a_marker_written_during_the_load_is_applied(log: PartitionLog) -> None:
    """After a crash the transaction coordinator writes markers while the offsets are loaded."""

    async def story() -> None:
        first = World()
        first.host.lead(FaultyPartition(log))
        await first.host.call(
            0, lambda shard, waiter, now: shard.decide_pending("offset", waiter, 7)
        )
        first.host.close()
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        assert world.host.loading
        partition.append_marker(7, commit=True)
        await until(lambda: not world.host.loading, "the shard to be read")
        assert (world.shard.durable, world.shard.pending) == ({"offset": 1}, {})
        world.host.close()

    asyncio.run(story())


def test_an_unreadable_log_has_no_coordinator(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        first = World()
        first.host.lead(FaultyPartition(log))
        await first.count("a")
        first.host.close()
        world = World()

        def broken(self: CountingShard, record: object) -> None:
            raise ValueError("not what it should be")

        monkeypatch.setattr(CountingShard, "apply", broken)
        world.host.lead(FaultyPartition(log))
        await until(lambda: not world.host.loading, "the attempt to end")
        assert code_of(world.look("a")) is E.NOT_COORDINATOR
        world.host.close()

    asyncio.run(story())


def test_waiters_of_a_shard_that_moves_get_not_coordinator(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log, alone=False))
        waiting = world.count("a")
        world.host.resign(0)
        assert code_of(waiting) is E.NOT_COORDINATOR
        assert code_of(world.look("a")) is E.NOT_COORDINATOR
        assert world.resigned == [0]
        world.host.resign(0)
        assert world.resigned == [0], "it had gone already"

    asyncio.run(story())


def test_waiters_of_an_offline_log_get_not_coordinator(log: PartitionLog) -> None:
    async def story() -> None:
        world, partition = World(), FaultyPartition(log, alone=False)
        world.host.lead(partition)
        waiting = world.count("a")
        partition.log = None
        partition.waiters.wake()
        assert code_of(waiting) is E.NOT_COORDINATOR
        assert code_of(world.look("a")) is E.NOT_COORDINATOR

    asyncio.run(story())


def test_shard_is_kept_by_the_same_leader_and_reloaded_by_another(log: PartitionLog) -> None:
    async def story() -> None:
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        world.host.lead(partition)
        assert len(world.shards) == 1
        partition.leader_epoch = 1  # a replica was removed
        world.host.lead(partition)
        assert len(world.shards) == 1
        partition.leader_epoch = partition.leader_since_epoch = 3
        world.host.lead(partition)
        await until(lambda: not world.host.loading, "the shard to be read")
        assert len(world.shards) == 2 and world.shard.durable == {"a": 1}
        world.host.close()

    asyncio.run(story())


# ---- timers ----


def test_a_timer_decides_once(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log))
        for at_ms in (now_ms() + 60_000, now_ms() + 5):  # armed again: the later time counts
            await world.host.call(
                0, lambda shard, waiter, now, at=at_ms: shard.decide_arm("t", waiter, at)
            )
        await until(lambda: world.shard.durable, "the timer")
        await world.host.call(0, lambda shard, waiter, now: shard.decide_arm("u", waiter, now))
        await until(lambda: len(world.shard.fired) > 1, "the next timer")
        assert world.shard.fired == ["t", "u"]
        assert world.shard.durable == {"timer t": 1, "timer u": 2}
        world.host.close()

    asyncio.run(story())


def test_a_timer_whose_decision_fails_reloads_the_shard(log: PartitionLog) -> None:
    """The shard is reloaded; no error reaches the event loop."""

    async def story() -> None:
        escaped: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: escaped.append(context)
        )
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        partition.fail = E.NOT_ENOUGH_REPLICAS
        await world.host.call(0, lambda shard, waiter, now: shard.decide_arm("t", waiter, now))
        await until(
            lambda: len(world.shards) == 2 and not world.host.loading, "the shard to be read again"
        )
        partition.fail = None
        assert (world.shard.durable, escaped) == ({"a": 1}, [])
        world.host.close()

    asyncio.run(story())


def test_a_shard_is_loaded_once_the_disk_has_room(log: PartitionLog) -> None:
    """Otherwise its clients would be redirected back and forth until the leader changes."""

    async def story() -> None:
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        assert await world.count("a") == 1
        world.host.resign(0)
        log.failed = StorageError("/d", "cannot truncate", OSError(errno.ENOSPC, "full"))
        world.host.lead(partition)
        await asyncio.sleep(0.05)
        assert code_of(world.look("a")) is E.COORDINATOR_LOAD_IN_PROGRESS
        log.failed = None
        await until(lambda: not world.host.loading, "the shard to be read")
        assert await world.look("a") == 1
        world.host.close()

    asyncio.run(story())


def test_reloads_pause_while_the_first_write_fails(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the broker would do nothing else while a disk is full."""

    async def story() -> None:
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        resume = Decision((CoordinatorRecord("b", 1),))
        monkeypatch.setattr(CountingShard, "on_loaded", lambda self, *, now_ms: resume)
        world.host.resign(0)
        partition.fail = E.KAFKA_STORAGE_ERROR
        rests: list[float] = []
        sleep = asyncio.sleep

        async def rest(delay: float) -> None:
            rests.append(delay)
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", rest)
        world.host.lead(partition)
        while len(world.shards) < 5:
            await sleep(0)
        assert len([delay for delay in rests if delay > 0]) >= 2
        world.host.close()

    asyncio.run(story())
