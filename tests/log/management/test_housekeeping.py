"""Background work: group commit, retention, checkpoints, file deletion, expiry, idle releases."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories import checkpoints, file_names
from millstream.log.errors import StorageError
from millstream.log.management.housekeeping import Housekeeping, HousekeepingSettings
from millstream.log.management.manager import LogManager, ManagerSettings
from millstream.ports.files import RealFiles
from millstream.sim.world.disk import SimDisk, io_error, no_space
from support.log.world import NOW_MS, TP, append, batch, manager

ID = uuid.UUID(int=5)
OFTEN = HousekeepingSettings(*([1] * len(HousekeepingSettings._fields)))


@asynccontextmanager
async def running(
    logs: LogManager,
    settings: HousekeepingSettings | None = None,
    **options: Callable[..., Awaitable[None]],
) -> AsyncIterator[Housekeeping]:
    housekeeping = Housekeeping(logs, settings or HousekeepingSettings(), **options)  # type: ignore[arg-type]
    task = asyncio.create_task(housekeeping.run())
    await asyncio.sleep(0)
    try:
        yield housekeeping
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for is on disk
            await asyncio.sleep(0.005)


def made(tmp_path: Path, config: LogConfig | None = None, **settings: int) -> LogManager:
    return manager(
        RealFiles(),
        [str(tmp_path / "data")],
        config=config or LogConfig(),
        settings=ManagerSettings(**settings),
    )


def test_a_flush_makes_everything_durable_and_many_waiters_share_one(tmp_path: Path) -> None:
    logs = made(tmp_path)
    log = logs.create(TP, ID)
    syncs = 0

    async def story() -> None:
        async def blocking(call: Callable[[], None]) -> None:
            nonlocal syncs
            syncs += 1
            await asyncio.to_thread(call)

        async with running(logs, blocking=blocking) as housekeeping:
            append(log, batch(1))
            waiters = [asyncio.create_task(housekeeping.flush(log)) for _ in range(20)]
            await asyncio.gather(*waiters)
            assert log.recovery_point == 1
            assert syncs == 1
            append(log, batch(1))
            first = asyncio.create_task(housekeeping.flush(log))
            await asyncio.sleep(0)
            append(
                log, batch(1)
            )  # perhaps after the first flush began: then the next one covers it
            await asyncio.gather(first, housekeeping.flush(log))
            assert log.recovery_point == 3
            assert syncs in (2, 3)

    asyncio.run(story())
    logs.close(broker_epoch=None)


def test_flush_messages_asks_for_a_flush_before_the_acknowledgement(tmp_path: Path) -> None:
    logs = made(tmp_path, LogConfig(flush_messages=2))
    log = logs.create(TP, ID)
    append(log, batch(1))
    assert not log.flush_due
    append(log, batch(1))
    assert log.flush_due
    log.flush()
    assert not log.flush_due
    append(log, batch(3))
    assert log.flush_due
    logs.close(broker_epoch=None)


def test_background_flush_after_roll_age_and_bytes(tmp_path: Path) -> None:
    async def story(config: LogConfig, **settings: int) -> None:
        logs = made(tmp_path / uuid.uuid4().hex, config, **settings)
        log = logs.create(TP, ID)
        async with running(logs):
            for _ in range(30):
                append(log, batch(1, size=50))
            await until(lambda: log.recovery_point > 20)
        logs.close(broker_epoch=None)

    asyncio.run(story(LogConfig(segment_bytes=300)))
    asyncio.run(story(LogConfig(flush_ms=1)))
    asyncio.run(story(LogConfig(flush_messages=5)))
    asyncio.run(story(LogConfig(), writeback_bytes=200, flush_bytes=1000))


def test_a_failed_sync_takes_the_directory_offline_and_fails_the_waiters() -> None:
    disk = SimDisk()
    logs = manager(disk, ["/one", "/two"])
    log = logs.create(TP, ID, directory="/one")

    async def story() -> None:
        async with running(logs) as housekeeping:
            append(log, batch(1))
            disk.fault = lambda operation, path: io_error(path) if operation == "sync" else None
            with pytest.raises(StorageError) as error:
                await housekeeping.flush(log)
            assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
            disk.fault = lambda operation, path: None
            with pytest.raises(StorageError):
                await housekeeping.flush(log)
            other = logs.create(TopicPartition("other", 0), ID)
            append(other, batch(1))
            await housekeeping.flush(other)
            assert other.recovery_point == 1

    asyncio.run(story())
    assert [log_dir.path for log_dir in logs.online_dirs()] == ["/two"]


def test_a_disk_too_full_to_flush_is_flushed_later() -> None:
    disk = SimDisk()
    logs = manager(disk, ["/one"])
    log = logs.create(TP, ID)

    async def story() -> None:
        async with running(logs) as housekeeping:
            append(log, batch(1))
            disk.fault = lambda operation, path: no_space(path) if operation == "write" else None
            with pytest.raises(StorageError):
                await housekeeping.flush(log)
            assert log.recovery_point == 0
            disk.fault = lambda operation, path: None
            await housekeeping.flush(log)
            assert log.recovery_point == 1

    asyncio.run(story())
    disk.crash()
    again = manager(disk, ["/one"])
    assert again.logs[TP].log_end_offset == 1
    assert again.logs[TP].epochs.entries() == [(0, 0)]


def test_retention_deletion_and_checkpoints_happen_by_themselves(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_bytes=600, file_delete_delay_ms=0)
    logs = made(tmp_path, config, delete_delay_ms=0)
    log = logs.create(TP, ID)
    doomed = TopicPartition("doomed", 0)
    logs.create(doomed, ID)
    data = tmp_path / "data"

    async def story() -> None:
        async with running(logs, OFTEN):
            for _ in range(30):
                append(log, batch(1, size=50))
            log.advance_high_watermark(log.log_end_offset)
            logs.delete(doomed)
            logs.wake()
            await until(lambda: log.log_start_offset > 20)
            await until(
                lambda: not [n for n in os.listdir(log.directory) if n.endswith(".deleted")]
            )
            await until(lambda: not [n for n in os.listdir(data) if n.startswith("doomed")])
            for name, value in (
                (file_names.RECOVERY_POINTS, log.log_end_offset),
                (file_names.LOG_STARTS, log.log_start_offset),
                (file_names.HIGH_WATERMARKS, log.high_watermark),
            ):
                await until(
                    lambda n=name, v=value: offsets(data, n).get(TP) == v or not logs.wake()
                )  # type: ignore[misc]

    asyncio.run(story())
    logs.close(broker_epoch=None)


def offsets(data: Path, name: str) -> dict[TopicPartition, int]:
    return checkpoints.read_offsets(RealFiles(), str(data / name))


def test_a_moved_log_start_is_durable_before_delete_records_is_answered(tmp_path: Path) -> None:
    logs = made(tmp_path)
    log = logs.create(TP, ID)

    async def story() -> None:
        async with running(logs) as housekeeping:
            append(log, batch(9))
            log.advance_high_watermark(9)
            log.delete_records(4)
            await housekeeping.log_starts_durable()
            assert offsets(tmp_path / "data", file_names.LOG_STARTS) == {TP: 4}

    asyncio.run(story())
    logs.close(broker_epoch=None)


def test_silent_producers_are_forgotten_and_idle_logs_hold_no_descriptors(tmp_path: Path) -> None:
    logs = made(tmp_path, producer_expiration_ms=1000)
    log = logs.create(TP, ID)
    append(log, batch(1, timestamp=NOW_MS - 5000, producer_id=1, epoch=0, sequence=0))
    append(log, batch(1, timestamp=NOW_MS, producer_id=2, epoch=0, sequence=0))
    assert len(logs.pool) == 1

    async def story() -> None:
        async with running(logs, OFTEN):
            logs.wake()
            await until(lambda: set(log.producer_state.producers) == {2} or bool(logs.wake()))
            await until(lambda: len(logs.pool) == 0 or bool(logs.wake()))

    asyncio.run(story())
    assert append(log, batch(1)).base_offset == 2
    logs.close(broker_epoch=None)


def test_a_log_deleted_during_its_flush_does_no_harm(tmp_path: Path) -> None:
    logs = made(tmp_path)
    log = logs.create(TP, ID)

    async def story() -> None:
        async def blocking(call: Callable[[], None]) -> None:
            if TP in logs.logs:
                logs.delete(TP)
            await asyncio.to_thread(call)

        async with running(logs, blocking=blocking) as housekeeping:
            append(log, batch(1))
            with pytest.raises(StorageError, match="deleted"):
                await housekeeping.flush(log)

    asyncio.run(story())
    assert logs.online_dirs()
    logs.close(broker_epoch=None)


def test_a_full_disk_does_not_end_it() -> None:
    """It would end the broker. Indexes that cannot be written stay in memory, where everything else
    of an idle log goes.
    """
    disk = SimDisk(1)
    logs = manager(disk, ["/a"], config=LogConfig(index_interval_bytes=1, retention_ms=1))
    log = logs.create(TP, ID)
    for _ in range(20):
        append(log, batch(1, timestamp=1))
    entries = log.segments[0].index.entries()
    log.advance_high_watermark(20)
    disk.fault = lambda what, path: no_space(path) if what != "read" else None

    async def story() -> None:
        task = asyncio.create_task(Housekeeping(logs, OFTEN).run())
        for _ in range(20):
            await asyncio.sleep(0.001)
            logs.queues.add_writeback(log)
            logs.wake()
        assert not task.done()
        assert log.segments[0].index.entries() == entries
        disk.fault = lambda what, path: None
        await until(lambda: log.log_start_offset == 20 and len(logs.pool) == 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
    append(log, batch(1))


def test_close_completes_an_interrupted_flush(tmp_path: Path) -> None:
    logs = made(tmp_path)
    log = logs.create(TP, ID)
    append(log, batch(1), leader_epoch=7)

    async def never(call: Callable[[], None]) -> None:
        await asyncio.sleep(3600)

    async def story() -> None:
        async with running(logs, blocking=never) as housekeeping:
            flushed = asyncio.ensure_future(housekeeping.flush(log))
            await asyncio.sleep(0.01)
        await asyncio.gather(flushed, return_exceptions=True)

    asyncio.run(story())
    logs.close(broker_epoch=1)
    assert made(tmp_path).logs[TP].epochs.entries() == [(7, 0)]


def test_flush_of_truncated_records_completes(tmp_path: Path) -> None:
    logs = made(tmp_path)
    log = logs.create(TP, ID)
    for _ in range(3):
        append(log, batch(1))

    async def cut_meanwhile(call: Callable[[], None]) -> None:
        log.truncate_to(1, now_ms=NOW_MS)
        call()

    async def story() -> None:
        async with running(logs, blocking=cut_meanwhile) as housekeeping, asyncio.timeout(120):
            await housekeeping.flush(log)

    asyncio.run(story())
    assert log.recovery_point == log.log_end_offset == 1
    logs.close(broker_epoch=None)
