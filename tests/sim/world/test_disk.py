"""The simulated disk: data that survives a kill, data that survives a crash, and crashes that
repeat with their seed.
"""

from __future__ import annotations

import pytest

from millstream.sim.world.disk import SimDisk, io_error


def written(seed: int = 1) -> SimDisk:
    disk = SimDisk(seed)
    disk.makedirs("/d")
    disk.sync_dir("/")
    disk.write_bytes("/d/synced", b"s" * 2000)
    disk.sync_file("/d/synced")
    disk.sync_dir("/d")
    return disk


def test_a_kill_keeps_everything_and_releases_locks() -> None:
    disk = written()
    disk.write_bytes("/d/new", b"n")
    assert disk.lock("/d/.lock") is not None
    disk.kill()
    assert disk.read_bytes("/d/new") == b"n"
    assert disk.lock("/d/.lock") is not None


def test_synced_data_survives_every_crash() -> None:
    for seed in range(100):
        disk = written(seed)
        disk.open("/d/synced").append((b"tail" * 1000,))
        disk.crash()
        assert disk.read_bytes("/d/synced")[:2000] == b"s" * 2000


def test_unsynced_bytes_stay_go_or_are_torn() -> None:
    seen = set()
    for seed in range(200):
        disk = written(seed)
        disk.open("/d/synced").append((b"t" * 2000,))
        disk.crash()
        tail = disk.read_bytes("/d/synced")[2000:]
        seen.add(
            "gone"
            if not tail
            else "whole"
            if tail == b"t" * 2000
            else "holes"
            if b"\0" in tail
            else "cut"
        )
    assert seen == {"gone", "whole", "holes", "cut"}


def test_unsynced_names_stay_in_the_order_they_were_made() -> None:
    kept = set()
    for seed in range(100):
        disk = written(seed)
        for number in range(3):
            disk.write_bytes(f"/d/{number}", b"")
        disk.crash()
        names = sorted(set(disk.listdir("/d")) - {"synced"})
        assert names == [str(number) for number in range(len(names))]
        kept.add(len(names))
    assert kept == {0, 1, 2, 3}


def test_an_unsynced_rename_may_be_undone() -> None:
    outcomes = set()
    for seed in range(50):
        disk = written(seed)
        disk.rename("/d/synced", "/d/renamed")
        disk.crash()
        outcomes.add(tuple(disk.listdir("/d")))
    assert outcomes == {("synced",), ("renamed",)}


def test_the_same_seed_crashes_the_same_way() -> None:
    def end(seed: int) -> bytes:
        disk = written(seed)
        disk.open("/d/synced").append((bytes(range(256)) * 20,))
        disk.crash()
        return disk.read_bytes("/d/synced")

    assert end(7) == end(7)
    assert len({end(seed) for seed in range(20)}) > 5


def test_a_failing_append_reports_it_and_keeps_the_size() -> None:
    disk = written()
    disk.fault = lambda operation, path: io_error(path) if operation == "append" else None
    file = disk.open("/d/synced")
    with pytest.raises(OSError):
        file.append((b"x" * 100,))
    assert file.size == 2000
    assert disk.size("/d/synced") == 2000
