"""A disk that fills up, or fails, in the middle of a replica's append or of a truncation: nothing
is left half done, and nothing claimed that is not there.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest

from millstream.log import truncation
from millstream.log.cleaner.swap import stage_swap
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.errors import StorageError
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import Origin, PartitionLog
from millstream.sim.world.disk import SimDisk, no_space
from support.log.world import NOW_MS, TP, append, append_marker, batch, manager, read_all

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=1, file_delete_delay_ms=0)
MOST_OPERATIONS = 400
# A disk that refuses both has taken a part of what was to be written, perhaps all, and does not cut
# that away again.
WRITING = ("append", "undo append")


def produced() -> Iterator[Callable[[PartitionLog], object]]:
    """Transactions, of which every other one was aborted, in several segments."""

    def send(producer: int, records: int, sequence: int) -> Callable[[PartitionLog], object]:
        return lambda log: append(
            log,
            batch(
                records,
                producer_id=producer,
                epoch=0,
                sequence=sequence,
                transactional=producer == 5,
            ),
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
        assert (
            self.log.producer_state.producers.keys() == self.leader.producer_state.producers.keys()
        )


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
            assert left == bool(world.manager.queues.unfinished)
            truncation.finish(world.log)
        assert world.log.failed is None
        world.assert_true()
        world.catch_up()
        world.assert_same()
    else:
        raise AssertionError("it never comes to its end")
    assert refused, "no operation failed"


@pytest.mark.parametrize("full", [World.full_from, World.full_once], ids=["full", "full once"])
def test_append_rejected_by_the_disk_leaves_nothing_behind(full: Full) -> None:
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


def test_unfinished_truncation_rejects_everything() -> None:
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
        truncation.finish(world.log)
    assert list(world.manager.queues.unfinished) == [world.log]
    world.roomy()
    truncation.finish(world.log)
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
        assert world.manager.queues.unfinished == {}
        world.catch_up()
        world.assert_same()

    asyncio.run(story())


def snapshots(world: World) -> list[str]:
    return [name for name in world.disk.listdir(world.log.directory) if name.endswith(".snapshot")]


def diverge(world: World) -> None:
    """A tail that the leader of the next epoch never had, in several segments."""
    for sequence in range(30):
        append(world.log, batch(1, producer_id=7, epoch=0, sequence=sequence))
    world.log.flush()


@pytest.mark.parametrize("full", [World.full_from, World.full_once], ids=["full", "full once"])
def test_truncation_drops_producer_state(full: Full) -> None:
    """The snapshot of a dropped tail, believed by a later start, would have batches acknowledged as
    repeated that are not in the log.
    """
    for operation in range(MOST_OPERATIONS):
        world = World()
        diverge(world)
        full(world, operation)
        try:
            world.log.truncate_to(5, now_ms=NOW_MS)
        except StorageError:
            world.roomy()
            truncation.finish(world.log)
        else:
            break
        assert snapshots(world) == [
            f"{offset:020}.snapshot" for offset in world.log.segment_list.snapshots
        ]
        world.log.update_config(LogConfig())
        for sequence in range(40):
            append(world.log, batch(1, producer_id=8, epoch=0, sequence=sequence), leader_epoch=1)
        world.log.flush()
        world.manager.checkpoints.write_all()
        world.restart()
        known = world.log.producer_state.producers
        assert {one: entry.last_sequence for one, entry in known.items()} == {7: 4, 8: 39}
    assert operation > 5


def test_late_truncation_tolerates_deleted_files() -> None:
    world = World()
    diverge(world)

    def fault(what: str, path: str) -> OSError | None:
        return (
            no_space(path)
            if what == "open" and path.endswith("/00000000000000000050.log")
            else None
        )

    world.disk.fault = fault
    with pytest.raises(StorageError):
        world.log.truncate_fully_and_start_at(50, now_ms=NOW_MS)
    for _ in range(2):
        for item in world.manager.deletes.take_due(NOW_MS + 1):
            item.remove(world.manager.files)
        with pytest.raises(StorageError, match="no space"):
            truncation.finish(world.log)
    world.roomy()
    assert truncation.finish(world.log)
    assert world.manager.logs == {TP: world.log}
    assert world.log.log_end_offset == 50


def test_a_segment_that_could_not_be_begun_is_not_found_by_the_next_start() -> None:
    for refused in ("rename", "unlink"):
        world = World()
        append(world.log, batch(1))
        append(world.log, batch(1))

        def fault(what: str, path: str, refused: str = refused) -> OSError | None:
            return no_space(path) if path.endswith(".snapshot") or what == refused else None

        world.disk.fault = fault
        with pytest.raises(StorageError):
            append(world.log, batch(1, size=500))
        with suppress(
            StorageError
        ):  # one that fits, but where the file of the other cannot be removed
            append(world.log, batch(1))
        world.roomy()
        for _ in range(3):
            append(world.log, batch(1))
        end = world.log.log_end_offset
        world.log.flush()
        world.manager.checkpoints.write_all()
        world.restart()
        assert world.log.log_end_offset == end
        assert len(read_all(world.log)) == end


@pytest.mark.parametrize("restart", [False, True], ids=["goes on", "killed"])
@pytest.mark.parametrize("full", [World.full_from, World.full_once], ids=["full", "full once"])
def test_compacted_segments_are_swapped_in_or_none_of_them(full: Full, restart: bool) -> None:
    """The old files are deleted after a while, also where the new ones have not
    taken their places.
    """
    for operation in range(MOST_OPERATIONS):
        world = World()
        world.catch_up()
        world.log.flush()
        world.manager.checkpoints.write_all()
        old = [segment.base_offset for segment in world.log.segments[:3]]
        before = read_all(world.log)
        path = world.log.segments[0].path(file_names.LOG) + file_names.CLEANED
        kept = [
            raw for header, raw in before if header.base_offset < world.log.segments[3].base_offset
        ]
        world.disk.write_bytes(path, b"".join(kept))
        stage_swap(world.disk, world.log.directory, old[:1])
        full(world, operation)
        try:
            world.log.replace_segments(old[:1], old)
        except StorageError:
            world.roomy()
        else:
            break
        for item in world.manager.deletes.take_due(NOW_MS + 1):
            item.remove(world.manager.files)
        if restart:
            world.restart()
        else:
            truncation.finish(world.log)
        assert read_all(world.log) == before
        assert not [
            name
            for name in world.disk.listdir(world.log.directory)
            if name.endswith(file_names.SWAP)
        ]
    assert operation > 5


def test_damaged_batch_below_a_truncation_takes_partition_offline() -> None:
    """To go on would be with producers of which only a part is known: a batch that is sent again
    would be in the log twice.
    """
    world = World()
    for sequence in range(4):
        append(world.log, batch(1, producer_id=7, epoch=0, sequence=sequence))
    path = world.log.segments[0].path(file_names.LOG)
    data = bytearray(world.disk.read_bytes(path))
    data[8:12] = b"\xff" * 4  # the length of the first batch
    world.disk.write_bytes(path, data)
    with pytest.raises(StorageError, match="corrupt"):
        world.log.truncate_to(2, now_ms=NOW_MS)
    assert world.manager.logs == {}
    assert "corrupt" in world.manager.offline[TP]
    with pytest.raises(StorageError):
        world.fetch()


def test_a_power_cut_does_not_bring_back_that_a_transaction_was_aborted() -> None:
    """Its marker is cut away, and the log goes on in another segment, above which the next recovery
    begins.
    """
    for seed in range(30):
        disk = SimDisk(seed)
        logs = manager(disk, ["/a"])
        log = logs.create(TP, uuid.UUID(int=9))
        append(log, batch(3, producer_id=5, epoch=0, sequence=0, transactional=True))
        append_marker(log, 5, 0, commit=False)
        log.flush()
        log.truncate_to(3, now_ms=NOW_MS)
        log.roll(now_ms=NOW_MS)
        append_marker(log, 5, 0, commit=True)
        logs.checkpoints.write_all()
        disk.crash()
        log = manager(disk, ["/a"]).logs[TP]
        assert log.log_end_offset >= 3
        assert log.aborted_transactions(0, 4) == []


def test_nothing_is_left_in_the_index_of_an_abort_that_was_refused() -> None:
    """It would be believed when the index of an idle log is read again."""

    def fault(what: str, path: str) -> OSError | None:
        return (
            no_space(path)
            if path.endswith(file_names.TRANSACTION_INDEX) and what in WRITING
            else None
        )

    for seed in range(200):
        disk = SimDisk(seed)
        logs = manager(disk, ["/a"])
        log = logs.create(TP, uuid.UUID(int=9))
        append(log, batch(3, producer_id=5, epoch=0, sequence=0, transactional=True))
        disk.fault = fault
        with pytest.raises(StorageError):
            append_marker(log, 5, 0, commit=False)
        disk.fault = lambda what, path: None
        append_marker(log, 5, 0, commit=True)
        logs.pool.sweep()
        logs.pool.sweep()
        assert log.aborted_transactions(0, 4) == []
