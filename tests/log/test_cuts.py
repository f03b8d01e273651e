"""A disk that fills up, or fails, in the middle of a replica's append or of a truncation: nothing is left half done, and nothing claimed that is not there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from log_world import NOW_MS, TP, append, append_marker, batch, manager, read_all

from millstream.log import cuts
from millstream.log.config import LogConfig
from millstream.log.errors import StorageError
from millstream.log.housekeeping import Housekeeping
from millstream.log.manager import LogManager
from millstream.log.partition_log import Origin, PartitionLog
from millstream.sim.disk import SimDisk, no_space

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=1, file_delete_delay_ms=0)
MOST_OPERATIONS = 400


def produced() -> Iterator[Callable[[PartitionLog], object]]:
    """Transactions, of which every other one was aborted, in several segments."""

    def send(producer: int, records: int, sequence: int) -> Callable[[PartitionLog], object]:
        return lambda log: append(
            log,
            batch(records, producer_id=producer, epoch=0, sequence=sequence, transactional=producer == 5),
        )

    def end(commit: bool) -> Callable[[PartitionLog], object]:
        return lambda log: append_marker(log, 5, 0, commit=commit)

    for n in range(8):
        yield from (send(5, 2, 4 * n), send(6, 1, n), send(5, 2, 4 * n + 2), end(n % 2 == 0))


class World:
    """A replica on a disk that can be full, and what its leader has."""

    def __init__(self) -> None:
        self.disk = SimDisk(1)
        self.manager = self._managed()
        self.log = self.manager.create(TP, uuid.UUID(int=9))
        self.leader = self._leader()

    def _managed(self) -> LogManager:
        return manager(self.disk, ["/a"], config=CONFIG)

    def _leader(self) -> PartitionLog:
        log = manager(SimDisk(2), ["/b"], config=CONFIG).create(TP, uuid.UUID(int=9))
        for step in produced():
            step(log)
        log.advance_high_watermark(log.log_end_offset)
        return log

    def restart(self) -> None:
        self.disk.kill()
        self.manager = self._managed()
        self.log = self.manager.logs[TP]

    def fetch(self, batches: int = 3) -> None:
        """As a follower does: some batches from its end on."""
        found = read_all(self.leader, start=self.log.log_end_offset)[:batches]
        data = bytearray(b"".join(raw for _, raw in found))
        self.log.append(memoryview(data), leader_epoch=0, now_ms=NOW_MS, origin=Origin.REPLICATION)

    def catch_up(self) -> None:
        while self.log.log_end_offset < self.leader.log_end_offset:
            self.fetch()
        self.log.advance_high_watermark(self.leader.high_watermark)

    def full_from(self, operation: int) -> None:
        """The disk takes so many changes, and none after them."""
        self._full(lambda number: number >= operation)

    def full_once(self, operation: int) -> None:
        """It refuses one change: others have made room in between, or a smaller one fits."""
        self._full(lambda number: number == operation)

    def _full(self, refused: Callable[[int], bool]) -> None:
        numbers = count()

        def fault(what: str, path: str) -> OSError | None:
            return no_space(path) if what != "read" and refused(next(numbers)) else None

        self.disk.fault = fault

    def roomy(self) -> None:
        self.disk.fault = lambda what, path: None

    def assert_true(self) -> None:
        """What it says it has, it has, as the leader has it."""
        ours, theirs = read_all(self.log), read_all(self.leader)
        assert ours == theirs[: len(ours)]
        end = ours[-1][0].last_offset + 1 if ours else 0
        assert self.log.log_end_offset == end

    def assert_same(self) -> None:
        assert read_all(self.log) == read_all(self.leader)
        end = self.leader.log_end_offset
        assert self.log.aborted_transactions(0, end) == self.leader.aborted_transactions(0, end)
        assert self.log.last_stable_offset == self.leader.last_stable_offset
        assert self.log.producer_state.producers.keys() == self.leader.producer_state.producers.keys()


Full = Callable[[World, int], None]
Step = Callable[[World], None]


def catch_up(world: World) -> None:
    world.catch_up()


def cut(world: World) -> None:
    world.log.truncate_to(13, now_ms=NOW_MS)


def cut_everything(world: World) -> None:
    world.log.truncate_fully_and_start_at(0, now_ms=NOW_MS)


@pytest.mark.parametrize("restart", [False, True], ids=["goes on", "killed"])
@pytest.mark.parametrize("full", [World.full_from, World.full_once], ids=["full", "full once"])
@pytest.mark.parametrize("step", [catch_up, cut, cut_everything], ids=lambda step: step.__name__)
def test_a_disk_without_room_at_any_moment_of(step: Step, full: Full, restart: bool) -> None:
    refused = 0
    for operation in range(MOST_OPERATIONS):
        world = World()
        if step is not catch_up:
            world.catch_up()
        full(world, operation)
        try:
            step(world)
        except StorageError:
            refused += 1
        else:
            break
        left = world.log.failed is not None
        world.roomy()
        if restart:
            world.restart()
        else:
            assert left == bool(world.manager.unfinished_cuts)
            cuts.finish(world.log)
        assert world.log.failed is None
        world.assert_true()
        world.catch_up()
        world.assert_same()
    else:
        raise AssertionError("it never comes to its end")
    assert refused, "no operation failed"


@pytest.mark.parametrize("full", [World.full_from, World.full_once], ids=["full", "full once"])
def test_what_the_disk_of_a_leader_refuses_leaves_nothing_behind(full: Full) -> None:
    for operation in range(MOST_OPERATIONS):
        world = World()
        full(world, operation)
        refused = 0
        for step in produced():
            try:
                step(world.log)
            except StorageError:
                refused += 1
                world.roomy()
                step(world.log)
        if not refused:
            break
        world.log.advance_high_watermark(world.log.log_end_offset)
        world.assert_same()
        world.restart()
        world.log.advance_high_watermark(world.log.log_end_offset)
        world.assert_same()
    assert 20 < operation < MOST_OPERATIONS - 1


def test_a_log_with_an_unfinished_cut_refuses_everything_and_claims_nothing_of_what_goes() -> None:
    world = World()
    world.catch_up()
    world.full_from(1)  # after what is told to the checkpoints
    with pytest.raises(StorageError):
        cut(world)
    assert world.log.log_end_offset <= 13
    with pytest.raises(StorageError):
        world.log.read(0, 1000, upto=1)
    with pytest.raises(StorageError):
        world.fetch()
    with pytest.raises(StorageError):
        cuts.finish(world.log)
    assert list(world.manager.unfinished_cuts) == [world.log]
    world.roomy()
    cuts.finish(world.log)
    world.catch_up()
    world.assert_same()


def test_housekeeping_finishes_it_when_there_is_room() -> None:
    async def story() -> None:
        world = World()
        world.catch_up()
        world.full_from(1)
        with suppress(StorageError):
            cut(world)
        assert world.log.failed is not None
        housekeeping = Housekeeping(world.manager)
        running = asyncio.create_task(housekeeping.run())
        try:
            await asyncio.sleep(0)
            world.manager.wake()
            await asyncio.sleep(0.05)
            assert world.log.failed is not None  # still full
            world.roomy()
            async with asyncio.timeout(20):
                while world.log.failed is not None:
                    world.manager.wake()
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert world.manager.unfinished_cuts == {}
        world.catch_up()
        world.assert_same()

    asyncio.run(story())
