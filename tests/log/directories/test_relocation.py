"""Moving replicas between data directories: nothing is lost, appends go on, crashes leave one whole
replica.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import random
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.relocation import Relocator
from millstream.log.directories.replica_move import ReplicaMove
from millstream.log.errors import StorageError
from millstream.log.flush.job import FlushJob
from millstream.log.management.blocking import Blocking
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager, ManagerSettings
from millstream.log.partition_log import PartitionLog
from millstream.ports.files import RealFiles
from millstream.sim.world.disk import SimDisk
from millstream.wire.records.batch import parse_header
from support.log.world import NOW_MS, TP, append, append_marker, batch, manager, read_all

SMALL = LogConfig(segment_bytes=5000, index_interval_bytes=200, file_delete_delay_ms=0)
NO_DELAY = ManagerSettings(delete_delay_ms=0)


def filled(made: LogManager, directory: str, batches: int = 200) -> PartitionLog:
    log = made.create(TP, uuid.UUID(int=3), directory=directory)
    for number in range(batches):
        append(
            log,
            batch(2, size=30, producer_id=5, epoch=0, sequence=2 * number),
            leader_epoch=number // 50,
        )
    append(log, batch(1, producer_id=6, epoch=0, sequence=0, transactional=True), leader_epoch=9)
    append_marker(log, 6, 0, commit=False, leader_epoch=9)
    log.advance_high_watermark(log.log_end_offset)
    return log


async def moved(
    made: LogManager, log: PartitionLog, target: str, during: Callable[[], None] | None = None
) -> None:
    """Run a move to its end; `during` is called while it copies, and often enough before the copy
    takes the log's place.
    """
    housekeeping = Housekeeping(made)
    if during is not None:
        housekeeping.blocking = _interrupted(housekeeping.blocking, during)
    running = asyncio.create_task(housekeeping.run())
    await asyncio.sleep(0)
    Relocator(made, housekeeping).begin(log.tp, target)
    await until_moved(made, during)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _interrupted(blocking: Blocking, during: Callable[[], None]) -> Blocking:
    """Waits for the disk during which a lot happens, also where a busy machine gives the loop no
    turn meanwhile.
    """

    async def wait(job: Callable[[], None]) -> None:
        await blocking(job)
        for _ in range(10):
            during()

    return wait


async def until_moved(made: LogManager, during: Callable[[], None] | None = None) -> None:
    while TP in made.futures:
        if during is not None:
            during()
        await asyncio.sleep(0)


def contents(log: PartitionLog) -> list[bytes]:
    return [raw for _, raw in read_all(log)]


def test_a_moved_replica_has_the_same_records_and_the_old_directory_goes(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one)
    before = contents(log)

    asyncio.run(moved(made, log, two))

    assert log.log_dir == two
    assert contents(log) == before
    assert os.path.isdir(os.path.join(two, str(TP)))
    assert log.recovery_point == log.log_end_offset
    for item in made.deletes.take_due(NOW_MS):
        item.remove(made.files)
    assert not [name for name in os.listdir(one) if name.startswith("orders")]
    assert not [name for name in os.listdir(two) if name.endswith("future")]
    made.close(broker_epoch=1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_moved_replica_is_found_at_the_next_start(tmp_path: Path, clean: bool) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one)
    asyncio.run(moved(made, log, two))
    append(log, batch(1), leader_epoch=10)
    before = contents(log)
    producers = sorted(log.producer_state.snapshot())
    made.close(broker_epoch=1 if clean else None)

    again = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)

    found = again.logs[TP]
    assert found.log_dir == two
    assert found.topic_id == uuid.UUID(int=3)
    assert contents(found) == before
    assert sorted(found.producer_state.snapshot()) == producers
    assert found.epochs.entries() == log.epochs.entries()
    assert found.aborted_transactions(0, 1000) == [(6, 400)]
    again.close(broker_epoch=None)


def test_appends_truncations_and_retention_during_a_move_are_in_the_copy(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one, batches=400)
    turns = iter(range(10**6))

    def during() -> None:
        turn = next(turns)
        if turn < 20:
            append(log, batch(3, size=50), leader_epoch=10)
        if turn == 7:
            log.truncate_to(log.log_end_offset - 30, now_ms=NOW_MS)
        if turn == 12:
            log.delete_records(200)
            log.delete_old_segments(NOW_MS)
        log.advance_high_watermark(log.log_end_offset)

    asyncio.run(moved(made, log, two, during))
    before = contents(log)
    start = log.log_start_offset
    made.close(broker_epoch=None)
    again = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    assert again.logs[TP].log_start_offset == start
    assert contents(again.logs[TP]) == before
    assert again.logs[TP].log_dir == two
    again.close(broker_epoch=None)


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_at_any_moment_of_a_move_leaves_every_flushed_record(seed: int) -> None:
    disk = SimDisk(seed)
    made = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    log = filled(made, "/one", batches=60)
    log.flush()
    made.checkpoints.write_all()
    before = contents(log)
    stop = disk.dice.randint(0, 80)
    operations = iter(range(10**9))

    class Stop(Exception):
        pass

    def count(operation: str, path: str) -> OSError | None:
        if next(operations) == stop:
            raise Stop
        return None

    async def move_until_it_dies() -> None:
        async def blocking(call: Callable[[], None]) -> None:
            call()

        housekeeping = Housekeeping(made, blocking=blocking)
        running = asyncio.create_task(housekeeping.run())
        await asyncio.sleep(0)
        disk.fault = count
        Relocator(made, housekeeping).begin(TP, "/two")
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(move_until_it_dies())
    disk.fault = lambda operation, path: None
    disk.crash()

    again = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    assert not again.offline
    assert contents(again.logs[TP])[: len(before)] == before


def test_an_interrupted_move_is_begun_again(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    filled(made, one)
    os.mkdir(os.path.join(two, "orders-0.0123456789abcdef0123456789abcdef-future"))
    made.close(broker_epoch=1)

    again = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    assert again.moves.interrupted == [(TP, two)]

    async def resume() -> None:
        housekeeping = Housekeeping(again)
        running = asyncio.create_task(housekeeping.run())
        await asyncio.sleep(0)
        Relocator(again, housekeeping).resume()
        await until_moved(again)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(resume())
    assert again.logs[TP].log_dir == two
    again.close(broker_epoch=None)


def test_where_a_replica_cannot_be_moved_to(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL)
    filled(made, one, batches=1)
    mover = Relocator(made, Housekeeping(made))
    mover.begin(TP, one)  # it is there already
    with pytest.raises(ApiError) as refused:
        mover.begin(TP, str(tmp_path / "three"))
    assert refused.value.code == ErrorCode.LOG_DIR_NOT_FOUND
    with pytest.raises(ApiError) as refused:
        mover.begin(TP._replace(partition=7), two)
    assert refused.value.code == ErrorCode.REPLICA_NOT_AVAILABLE
    made.failures.fail_directory(two, "broken")
    with pytest.raises(ApiError) as refused:
        mover.begin(TP, two)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    made.close(broker_epoch=None)


class Died(BaseException):
    """The broker is no more."""


class Follower:
    """A log as a follower has it, and what ought to be in it: batches that it was sent, without
    those that were cut away.
    """

    def __init__(self, made: LogManager, log: PartitionLog, seed: int) -> None:
        self.made = made
        self.log = log
        self.dice = random.Random(seed)
        self.batches = [raw for _, raw in read_all(log)]
        self.durable = 0  # of them, since the last flush
        self.refused = 0
        self.epoch = 20
        self.steps_left = 10**9
        self.jobs = 0  # that wait for the disk: there is never more than one flush at a time

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Died
        choice = self.dice.random()
        if choice < 0.7:
            records = batch(self.dice.randint(1, 3), size=self.dice.randint(10, 400))
            append(self.log, records, leader_epoch=self.epoch)
            self.batches.append(bytes(records))
        elif choice < 0.8:
            self._cut()
        elif choice < 0.9 and not self.jobs:
            self.flush()
        self.log.advance_high_watermark(self.log.log_end_offset)

    def flush(self) -> None:
        self.log.flush()
        self.durable = len(self.batches)

    def _cut(self) -> None:
        kept = max(1, len(self.batches) - self.dice.randint(1, 40))
        offset = parse_header(self.batches[kept - 1]).last_offset + 1
        try:
            self.log.truncate_to(offset, now_ms=NOW_MS)
        except StorageError:
            self.refused += 1  # it has moved, and the copy is not durable yet
            return
        self.epoch += 1
        del self.batches[kept:]
        self.durable = min(self.durable, kept)


async def moved_to_and_fro(made: LogManager, follower: Follower) -> None:
    async def blocking(call: Callable[[], None]) -> None:
        follower.jobs += 1
        for _ in range(3):
            follower.step()
        await asyncio.sleep(0)
        call()
        follower.jobs -= 1
        for _ in range(3):
            follower.step()

    housekeeping = Housekeeping(made, blocking=blocking)
    running = asyncio.create_task(housekeeping.run())
    await asyncio.sleep(0)
    mover = Relocator(made, housekeeping)
    for target in ("/two", "/one", "/two"):
        follower.step()
        mover.begin(TP, target)
        await until_moved(made, follower.step)
        assert contents(follower.log) == follower.batches
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("seed", range(30))
def test_follower_keeps_its_records_during_relocation(seed: int) -> None:
    disk = SimDisk(seed)
    made = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    follower = Follower(made, filled(made, "/one", batches=100), seed)

    asyncio.run(moved_to_and_fro(made, follower))

    made.close(broker_epoch=1)
    again = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    assert again.logs[TP].log_dir == "/two"
    assert contents(again.logs[TP]) == follower.batches
    assert again.logs[TP].epochs.entries() == follower.log.epochs.entries()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("power_cut", [False, True])
def test_follower_killed_during_relocation_keeps_acknowledged_records(
    seed: int, power_cut: bool
) -> None:
    """All of it where the process dies, what was flushed where the machine does; nothing that was
    cut away comes back in its place.
    """
    disk = SimDisk(seed)
    made = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    follower = Follower(made, filled(made, "/one", batches=60), seed)
    follower.flush()
    follower.steps_left = disk.dice.randint(0, 300)
    with suppress(Died, BaseExceptionGroup):
        asyncio.run(moved_to_and_fro(made, follower))
    told = follower.batches
    if power_cut:
        told = told[: follower.durable]
        disk.crash()
    else:
        disk.kill()

    again = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    assert not again.offline
    found = contents(again.logs[TP])
    assert found[: len(told)] == told
    if not power_cut:
        assert found == told


def test_no_truncation_below_the_switch_before_it_is_durable(tmp_path: Path) -> None:
    """Else a crash would leave the longer one, with what was cut away."""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one)
    move = ReplicaMove(log, made.dirs[two])
    made.files.makedirs(move.directory)
    made.moves.left_behind[log] = move.switch()
    end = log.log_end_offset
    append(log, batch(2), leader_epoch=10)
    log.truncate_to(end + 1, now_ms=NOW_MS)  # nothing of what both have

    with pytest.raises(StorageError, match="is not truncated before its relocation is durable"):
        log.truncate_to(end - 1, now_ms=NOW_MS)
    assert log.log_end_offset == end
    with pytest.raises(StorageError):
        log.truncate_fully_and_start_at(0, now_ms=NOW_MS)
    log.flush()
    made.remove_left_behind(log)
    log.truncate_to(end - 1, now_ms=NOW_MS)
    assert log.log_end_offset < end
    made.close(broker_epoch=None)


def test_a_partition_that_is_deleted_right_after_its_move_leaves_nothing(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one)

    def delete_it() -> None:
        if log in made.moves.left_behind and TP in made.logs:
            made.delete(TP)

    asyncio.run(moved(made, log, two, delete_it))

    assert TP not in made.logs and not made.moves.left_behind
    for item in made.deletes.take_due(NOW_MS):
        item.remove(made.files)
    assert not [
        name for path in (one, two) for name in os.listdir(path) if name.startswith("orders")
    ]
    made.close(broker_epoch=1)


def test_a_flush_of_the_old_directory_does_not_count_for_the_new_one(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one)
    running = FlushJob.prepare(log)
    assert running is not None
    move = ReplicaMove(log, made.dirs[two])
    made.files.makedirs(move.directory)
    move.switch()
    running.run()
    running.completed()
    assert not log.is_flushed(0)
    log.flush()
    assert log.is_flushed(log.log_end_offset)
    made.close(broker_epoch=None)


def test_checkpoints_during_a_move_keep_where_the_log_begins(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], config=SMALL, settings=NO_DELAY)
    log = filled(made, one)
    log.delete_records(200)
    made.futures[TP] = ReplicaMove(log, made.dirs[two])
    made.checkpoints.write_all()
    assert made.dirs[two].checkpoints[file_names.LOG_STARTS] == {TP: 200}
    made.close(broker_epoch=None)


def test_a_move_keeps_to_the_rate_and_follows_its_changes(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    made = manager(RealFiles(), [one, two], settings=NO_DELAY)
    log = made.create(TP, uuid.UUID(int=3), directory=one)
    for _ in range(40):
        append(log, batch(1, size=100_000))
    rate = 100_000.0

    async def held_back_then_not() -> None:
        nonlocal rate
        housekeeping = Housekeeping(made)
        running = asyncio.create_task(housekeeping.run())
        await asyncio.sleep(0)
        started_s = time.monotonic()
        Relocator(made, housekeeping, lambda: rate).begin(TP, two)
        await asyncio.sleep(0.5)
        while not made.futures[TP].size:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # On a busy machine it may have been much longer than half a second.
        assert made.futures[TP].size <= rate * (time.monotonic() - started_s) + 150_000
        rate = math.inf
        async with asyncio.timeout(120):
            await until_moved(made)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(held_back_then_not())
    assert log.log_dir == two
    made.close(broker_epoch=None)


def test_a_failed_move_leaves_no_copy(tmp_path: Path) -> None:
    disk = SimDisk(1)
    made = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    log = filled(made, "/one")

    def full(operation: str, path: str) -> OSError | None:
        wanted = operation == "append" and path.startswith("/two/orders")
        return OSError(errno.ENOSPC, "no room", path) if wanted else None

    disk.fault = full
    asyncio.run(moved(made, log, "/two"))
    assert log.log_dir == "/one" and not log.failed
    for item in made.deletes.take_due(NOW_MS):
        item.remove(made.files)
    assert not [name for name in disk.listdir("/two") if name.startswith("orders")]


def test_a_log_is_made_in_the_directory_that_was_asked_for(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two", "three")]
    made = manager(RealFiles(), paths, config=SMALL)
    made.prefer(TP, made.dirs[paths[2]])
    assert made.create(TP, uuid.UUID(int=3)).log_dir == paths[2]
    other = TP._replace(partition=1)
    made.prefer(other, made.dirs[paths[2]])
    made.forget_preferred(TP.topic)
    assert made.create(other, uuid.UUID(int=3)).log_dir == paths[0]
    third = TP._replace(partition=2)
    made.prefer(third, made.dirs[paths[1]])
    made.failures.fail_directory(paths[1], "broken")
    assert made.create(third, uuid.UUID(int=3)).log_dir != paths[1]
    made.close(broker_epoch=None)


def test_a_directory_that_fails_when_it_is_left_costs_nothing_but_itself() -> None:
    disk = SimDisk(1)
    made = manager(disk, ["/one", "/two"], config=SMALL, settings=NO_DELAY)
    log = filled(made, "/one")

    def broken(operation: str, path: str) -> OSError | None:
        return (
            OSError(errno.EIO, "broken", path) if operation == "sync" and path == "/one" else None
        )

    disk.fault = broken
    asyncio.run(moved(made, log, "/two"))
    assert log.log_dir == "/two" and log.failed is None and made.dirs["/two"].online
    assert not made.dirs["/one"].online
    append(log, batch(1), leader_epoch=10)
