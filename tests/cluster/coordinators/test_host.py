"""The host of coordinator shards: what is told and when, what a failed append costs, loading, markers that come meanwhile, timers."""

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
from support.cluster.host_world import CountingShard, FaultyPartition, World, code_of, new_log, until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = new_log(tmp_path)
    yield made
    made.close(clean=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_an_answer_comes_when_its_record_is_in_the_log(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log))
        assert await world.count("a") == 1
        assert await world.count("a") == 2
        assert (log.log_end_offset, world.shard.durable) == (2, {"a": 2})
        assert (world.shard.seen, world.sent) == (["a", "a"], ["a", "a"])
        world.host.close()

    asyncio.run(story())


def test_nothing_is_told_or_sent_before_the_high_watermark_passes(log: PartitionLog) -> None:
    """Nor are reads answered that would tell of it; the shard's own memory moves at once."""

    async def story() -> None:
        world, partition = World(), FaultyPartition(log, alone=False)
        world.host.lead(partition)
        counted, looked = world.count("a"), world.look("a")
        await asyncio.sleep(0)
        assert (counted.done(), looked.done(), world.sent, world.shard.seen) == (False, False, [], ["a"])
        again = world.count("a")
        partition.commit()
        assert (await counted, await looked, await again) == (1, 1, 2)
        assert world.sent == ["a", "a"]
        world.host.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
    ],
    ids=lambda code: code.name,
)
def test_a_failed_append_leaves_no_trace(log: PartitionLog, failure: E, told: E) -> None:
    """The shard is read again from its log and equals what it was; others who wait must look for a coordinator."""

    async def story() -> None:
        world, partition = World(), FaultyPartition(log, alone=False)
        world.host.lead(partition)
        first = world.count("a")
        partition.commit()
        await first
        before = dict(world.shard.durable)
        waiting = world.count("b")
        partition.fail = failure
        refused = world.count("c")
        assert code_of(refused) is told
        assert code_of(waiting) is E.NOT_COORDINATOR
        assert world.resigned == [0]
        partition.fail = None
        partition.commit()
        await until(lambda: not world.host.loading, "the shard to be read again")
        assert len(world.shards) == 2
        # "b" reached the log, though nobody was told; "c" did not.
        assert world.shard.durable == before | {"b": 1}
        counted = world.count("c")
        partition.commit()
        assert await counted == 1
        world.host.close()

    asyncio.run(story())


def test_a_record_that_is_too_large_is_refused_and_costs_nothing(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log))
        await world.count("a")
        assert code_of(world.count("x" * 2_000_000)) is E.UNKNOWN_SERVER_ERROR
        assert (len(world.shards), world.shard.durable, log.log_end_offset) == (1, {"a": 1}, 1)
        assert await world.count("a") == 2
        world.host.close()

    asyncio.run(story())


def test_a_refused_transactional_append_costs_no_shard(log: PartitionLog) -> None:
    async def story() -> None:
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        partition.fail = E.INVALID_PRODUCER_EPOCH
        refused = world.host.call(0, lambda shard, waiter, now: shard.decide_pending("p", waiter, 7))
        assert code_of(refused) is E.INVALID_PRODUCER_EPOCH
        partition.fail = None
        assert (len(world.shards), world.shard.pending, await world.look("a")) == (1, {}, 1)
        world.host.close()

    asyncio.run(story())


def test_a_shard_that_is_being_read_says_so(log: PartitionLog) -> None:
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
        world.host.run(0, lambda shard, now: 1 / 0)  # nobody is there to be told
        await until(lambda: not world.host.loading, "the shard to be read")
        assert (world.shard.durable, world.shard.loaded, await world.look("a")) == ({"a": 500}, 1, 500)
        world.host.close()

    asyncio.run(story())


def test_replay_equals_what_was_live(log: PartitionLog) -> None:
    """Records, pending ones, their markers, and records of a kind that this version does not know."""

    async def story() -> None:
        first, partition = World(), FaultyPartition(log)
        first.host.lead(partition)
        for name in ("a", "b", "a", "c"):
            await first.count(name)
        for name, producer_id in (("kept", 7), ("dropped", 8), ("open", 9)):
            await first.host.call(
                0, lambda shard, waiter, now, n=name, p=producer_id: shard.decide_pending(n, waiter, p)
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


def test_a_marker_that_is_written_while_the_shard_is_read_is_not_missed(log: PartitionLog) -> None:
    """After a crash the transaction coordinator writes its markers while the offsets are still being read."""

    async def story() -> None:
        first = World()
        first.host.lead(FaultyPartition(log))
        await first.host.call(0, lambda shard, waiter, now: shard.decide_pending("offset", waiter, 7))
        first.host.close()
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        assert world.host.loading
        partition.append_marker(7, commit=True)
        await until(lambda: not world.host.loading, "the shard to be read")
        assert (world.shard.durable, world.shard.pending) == ({"offset": 1}, {})
        world.host.close()

    asyncio.run(story())


def test_a_log_that_cannot_be_read_has_no_coordinator(
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


def test_who_waits_for_a_shard_that_moves_is_sent_away(log: PartitionLog) -> None:
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


def test_a_log_that_goes_offline_sends_everyone_away(log: PartitionLog) -> None:
    async def story() -> None:
        world, partition = World(), FaultyPartition(log, alone=False)
        world.host.lead(partition)
        waiting = world.count("a")
        partition.log = None
        partition.waiters.wake()
        assert code_of(waiting) is E.NOT_COORDINATOR
        assert code_of(world.look("a")) is E.NOT_COORDINATOR

    asyncio.run(story())


def test_leading_on_changes_nothing_and_a_new_reign_reads_anew(log: PartitionLog) -> None:
    async def story() -> None:
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        world.host.lead(partition)
        assert len(world.shards) == 1
        partition.leader_epoch = 1  # a replica went
        world.host.lead(partition)
        assert len(world.shards) == 1
        partition.leader_epoch = partition.leader_since_epoch = 3
        world.host.lead(partition)
        await until(lambda: not world.host.loading, "the shard to be read")
        assert len(world.shards) == 2 and world.shard.durable == {"a": 1}
        world.host.close()

    asyncio.run(story())


# ---- timers -------------------------------------------------------------------------------------------------


def test_a_timer_decides_once(log: PartitionLog) -> None:
    async def story() -> None:
        world = World()
        world.host.lead(FaultyPartition(log))
        for at_ms in (now_ms() + 60_000, now_ms() + 5):  # armed again: the later word counts
            await world.host.call(0, lambda shard, waiter, now, at=at_ms: shard.decide_arm("t", waiter, at))
        await until(lambda: world.shard.durable, "the timer")
        await world.host.call(0, lambda shard, waiter, now: shard.decide_arm("u", waiter, now))
        await until(lambda: len(world.shard.fired) > 1, "the next timer")
        assert world.shard.fired == ["t", "u"]
        assert world.shard.durable == {"timer t": 1, "timer u": 2}
        world.host.close()

    asyncio.run(story())


def test_a_timer_whose_decision_cannot_be_written_ends_nothing_else(log: PartitionLog) -> None:
    """The shard is read again; no error escapes into the event loop."""

    async def story() -> None:
        escaped: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: escaped.append(context))
        world, partition = World(), FaultyPartition(log)
        world.host.lead(partition)
        await world.count("a")
        partition.fail = E.NOT_ENOUGH_REPLICAS
        await world.host.call(0, lambda shard, waiter, now: shard.decide_arm("t", waiter, now))
        await until(lambda: len(world.shards) == 2 and not world.host.loading, "the shard to be read again")
        partition.fail = None
        assert (world.shard.durable, escaped) == ({"a": 1}, [])
        world.host.close()

    asyncio.run(story())


def test_a_shard_whose_log_waits_for_room_on_the_disk_is_read_when_there_is_some(log: PartitionLog) -> None:
    """Its clients would be sent to this broker, and by it to look for another, until the leader changes."""

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


def test_a_shard_that_cannot_write_what_it_begins_with_is_not_read_again_and_again_without_a_rest(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a disk is full that would be all that the broker does."""

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
