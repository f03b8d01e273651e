"""Moving replicas between data directories: nothing is lost, appends go on, crashes leave one whole replica."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from log_world import NOW_MS, TP, append, append_marker, batch, manager, read_all

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.config import LogConfig
from millstream.log.housekeeping import Housekeeping
from millstream.log.manager import LogManager, ManagerSettings
from millstream.log.moving import Blocking, Mover
from millstream.log.partition_log import PartitionLog
from millstream.ports.files import RealFiles
from millstream.sim.disk import SimDisk

SMALL = LogConfig(segment_bytes=5000, index_interval_bytes=200, file_delete_delay_ms=0)
NO_DELAY = ManagerSettings(delete_delay_ms=0)


def filled(made: LogManager, directory: str, batches: int = 200) -> PartitionLog:
    log = made.create(TP, uuid.UUID(int=3), directory=directory)
    for number in range(batches):
        append(log, batch(2, size=30, producer_id=5, epoch=0, sequence=2 * number), leader_epoch=number // 50)
    append(log, batch(1, producer_id=6, epoch=0, sequence=0, transactional=True), leader_epoch=9)
    append_marker(log, 6, 0, commit=False, leader_epoch=9)
    log.advance_high_watermark(log.log_end_offset)
    return log


async def moved(
    made: LogManager, log: PartitionLog, target: str, during: Callable[[], None] | None = None
) -> None:
    """Run a move to its end; `during` is called while it copies, and often enough before the copy takes the log's place."""
    housekeeping = Housekeeping(made)
    if during is not None:
        housekeeping.blocking = _interrupted(housekeeping.blocking, during)
    running = asyncio.create_task(housekeeping.run())
    await asyncio.sleep(0)
    Mover(made, housekeeping).begin(log.tp, target)
    await until_moved(made, during)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _interrupted(blocking: Blocking, during: Callable[[], None]) -> Blocking:
    """Waits for the disk during which a lot happens, also where a busy machine gives the loop no turn meanwhile."""

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
    for item in made.take_doomed(NOW_MS):
        made.remove(item)
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
    made.checkpoint()
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
        Mover(made, housekeeping).begin(TP, "/two")
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
    assert again.interrupted_moves == [(TP, two)]

    async def resume() -> None:
        housekeeping = Housekeeping(again)
        running = asyncio.create_task(housekeeping.run())
        await asyncio.sleep(0)
        Mover(again, housekeeping).resume()
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
    mover = Mover(made, Housekeeping(made))
    mover.begin(TP, one)  # it is there already
    with pytest.raises(ApiError) as refused:
        mover.begin(TP, str(tmp_path / "three"))
    assert refused.value.code == ErrorCode.LOG_DIR_NOT_FOUND
    with pytest.raises(ApiError) as refused:
        mover.begin(TP._replace(partition=7), two)
    assert refused.value.code == ErrorCode.REPLICA_NOT_AVAILABLE
    made.fail_directory(two, "broken")
    with pytest.raises(ApiError) as refused:
        mover.begin(TP, two)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    made.close(broker_epoch=None)
