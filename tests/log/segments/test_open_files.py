"""The bound on open segments: second chance, index bytes, idle releases."""

from __future__ import annotations

import errno
import os
import resource
import uuid
from pathlib import Path

from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.management.manager import ManagerSettings
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.files import RealFiles
from millstream.sim.world.disk import SimDisk
from support.log.world import TP, append, batch, manager, read_all


class Item:
    def __init__(self) -> None:
        self.used = False
        self.released: list[bool] = []

    def release(self, *, idle: bool) -> None:
        self.released.append(idle)


def test_the_least_recently_used_are_released() -> None:
    pool = OpenFiles(max_open=2)
    items = [Item() for _ in range(4)]
    for item in items[:3]:
        pool.opened(item)
    assert [len(item.released) for item in items] == [1, 0, 0, 0]
    items[1].used = True
    items[2].used = False
    pool.opened(items[3])
    assert [len(item.released) for item in items] == [1, 0, 1, 0]
    assert len(pool) == 2


def test_loaded_indexes_are_bounded_too() -> None:
    pool = OpenFiles(max_open=100, max_index_bytes=1000)
    items = [Item() for _ in range(5)]
    for item in items:
        pool.opened(item)
        pool.opened(item, 400)
        item.used = False
    assert pool.index_bytes <= 1000
    assert sum(len(item.released) for item in items) == 3


def test_idle_ones_are_released_and_those_used_again_are_not() -> None:
    pool = OpenFiles()
    one, two, three = Item(), Item(), Item()
    for item in (one, two, three):
        pool.opened(item)
    assert pool.idle() == [], "all were just opened"
    three.used = True
    idle = pool.idle()
    assert idle == [one, two]
    two.used = True
    pool.release(idle)
    assert (one.released, two.released, three.released) == ([True], [], [])
    pool.closed(two)
    assert len(pool) == 1


def test_many_logs_work_with_few_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    settings = ManagerSettings(max_open_segments=5)
    config = LogConfig(segment_bytes=400, index_interval_bytes=100)
    logs = manager(RealFiles(), [str(tmp_path / "data")], settings=settings, config=config)
    for number in range(30):
        logs.create(TopicPartition("many", number), uuid.UUID(int=1))
    for _ in range(8):
        for log in logs.logs.values():
            append(log, batch(2, size=20))
    for log in logs.logs.values():
        assert [header.base_offset for header, _ in read_all(log)] == list(range(0, 16, 2))
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 7
    logs.close(broker_epoch=1)
    again = manager(RealFiles(), [str(tmp_path / "data")], settings=settings, config=config)
    assert {log.log_end_offset for log in again.logs.values()} == {16}
    assert len(again.pool) == 0
    again.close(broker_epoch=None)


def test_a_low_limit_of_open_files_costs_no_partition(tmp_path: Path) -> None:
    logs = manager(RealFiles(), [str(tmp_path / "data")])
    for number in range(60):
        logs.create(TopicPartition("many", number), uuid.UUID(int=1))
    logs.pool.sweep()
    logs.pool.sweep()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(str(tmp_path), os.O_RDONLY)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, before[1]))
    try:
        for log in logs.logs.values():
            append(log, batch(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not logs.offline
    assert {log.log_end_offset for log in logs.logs.values()} == {1}
    assert logs.pool.max_open < 60
    logs.close(broker_epoch=None)


def test_append_to_idle_log_with_too_many_open_files_is_atomic() -> None:
    """The batch was in the file, and the log ended before it: the next one got the same offset, and
    a restart cut it away.
    """
    disk = SimDisk(1)
    logs = manager(disk, ["/a"], config=LogConfig(index_interval_bytes=100))
    log = logs.create(TP, uuid.UUID(int=9))
    for sequence in range(10):
        append(log, batch(1, producer_id=7, epoch=0, sequence=sequence))
    logs.pool.sweep()
    logs.pool.sweep()
    assert not log.segments[0].index.is_loaded
    entries = log.segments[0].index.entries()[0]
    logs.pool.sweep()
    logs.pool.sweep()

    def fault(what: str, path: str) -> OSError | None:
        return (
            OSError(errno.EMFILE, "too many open files", path) if path.endswith("index") else None
        )

    disk.fault = fault
    for sequence in range(10, 20):
        append(log, batch(1, producer_id=7, epoch=0, sequence=sequence))
    disk.fault = lambda what, path: None
    append(log, batch(1, producer_id=7, epoch=0, sequence=20))
    assert [header.base_offset for header, _ in read_all(log)] == list(range(21))
    assert log.segments[0].index.entries()[0] == entries + 1
    disk.kill()
    assert manager(disk, ["/a"]).logs[TP].log_end_offset == 21
