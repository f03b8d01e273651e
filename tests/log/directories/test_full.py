"""Directories whose disk is full: noted with the first refused write, and cleared when there is
room for good.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories.full import PROBE, FullDirectories
from millstream.log.errors import StorageError
from millstream.log.management import housekeeping
from millstream.log.management.events import IgnoredEvents, LogEvents
from millstream.log.management.housekeeping import Housekeeping
from millstream.log.management.manager import LogManager
from millstream.sim.world.disk import SimDisk, io_error, no_space
from millstream.wire.records.batch import Record, build_batch


def opened(disk: SimDisk, *directories: str, events: LogEvents | None = None) -> LogManager:
    logs = LogManager(
        disk, directories, config_for=lambda topic: LogConfig(), clock=lambda: 0, events=events
    )
    logs.open()
    logs.identify("cluster", 0)
    return logs


def fill(disk: SimDisk, directory: str) -> None:
    def fault(operation: str, path: str) -> OSError | None:
        writes = operation in ("append", "write", "create", "makedirs")
        return no_space(path) if writes and path.startswith(directory) else None

    disk.fault = fault


def records() -> memoryview:
    return memoryview(bytearray(build_batch([Record(0, 0, None, b"v")])))


def test_refused_append_marks_its_directory_alone() -> None:
    changes: list[list[str]] = []

    class Events(IgnoredEvents):
        def full_directories_changed(self) -> None:
            changes.append(list(logs.full.paths))

    disk = SimDisk()
    logs = opened(disk, "/a", "/b", events=Events())
    log = logs.create(TopicPartition("orders", 0), uuid.UUID(int=1), directory="/a")
    fill(disk, "/a")
    for _ in range(2):
        with pytest.raises(StorageError):
            log.append(records(), leader_epoch=0, now_ms=0)
    assert list(logs.full.paths) == ["/a"] and changes == [["/a"]]
    assert logs.dirs["/a"].online


def test_new_partitions_go_to_a_directory_with_room() -> None:
    disk = SimDisk()
    logs = opened(disk, "/a", "/b")
    fill(disk, "/a")
    with pytest.raises(StorageError):
        logs.create(TopicPartition("orders", 0), uuid.UUID(int=1), directory="/a")
    made = [logs.create(TopicPartition("orders", index), uuid.UUID(int=1)) for index in range(3)]
    assert {log.log_dir for log in made} == {"/b"}


def test_directory_that_fails_is_no_longer_full() -> None:
    disk = SimDisk()
    logs = opened(disk, "/a", "/b")
    logs.full.write_rejected("/a")
    logs.failures.fail_directory("/a", "gone")
    assert not logs.full.paths


def test_several_probes_in_a_row_clear_a_directory() -> None:
    full = FullDirectories(SimDisk())
    full.write_rejected("/a")
    for room in (True, True, False, True, True):
        full.probed("/a", space=room)
    assert list(full.paths) == ["/a"], "three in a row are needed"
    full.write_rejected("/a")
    full.probed("/a", space=True)
    assert list(full.paths) == ["/a"], "a refused write counts as a failed probe"
    full.probed("/a", space=True)
    full.probed("/a", space=True)
    assert not full.paths


@pytest.mark.parametrize(
    ("total", "usable", "room"),
    [
        (1 << 40, 1 << 39, True),
        (1 << 40, 63 << 20, False),
        (1 << 40, 64 << 20, True),
        (50 << 20, 1 << 20, True),
        (50 << 20, (1 << 20) - 1, False),
    ],
)
def test_probe_asks_for_space_to_spare(total: int, usable: int, room: bool) -> None:
    disk = SimDisk()
    disk.makedirs("/a")
    disk.space = lambda path: (total, usable)  # type: ignore[method-assign]
    assert FullDirectories(disk).has_space("/a") is room
    assert not disk.exists(f"/a/{PROBE}")


@pytest.mark.parametrize("error", [no_space, io_error])
def test_probe_that_fails_leaves_the_directory_full(error: Callable[[str], OSError]) -> None:
    disk = SimDisk()
    disk.makedirs("/a")
    disk.fault = lambda operation, path: error(path) if operation == "write" else None
    assert not FullDirectories(disk).has_space("/a")


def test_housekeeping_probes_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_PROBE_S", 0.0)
    monkeypatch.setattr(housekeeping, "_TICK_S", 0.001)

    async def story() -> None:
        disk = SimDisk()
        logs = opened(disk, "/a")
        fill(disk, "/a")
        logs.full.write_rejected("/a")
        probes: list[bool] = []
        probed, cleared = logs.full.probed, asyncio.Event()

        def note(path: str, *, space: bool) -> None:
            probes.append(space)
            probed(path, space=space)
            if len(probes) == 2:
                disk.fault = lambda operation, path: None
            if not logs.full.paths:
                cleared.set()

        logs.full.probed = note  # type: ignore[method-assign]
        task = asyncio.get_running_loop().create_task(Housekeeping(logs).run())
        async with asyncio.timeout(120):
            await cleared.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert probes == [False, False, True, True, True]

    asyncio.run(story())
