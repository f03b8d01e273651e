"""Whether a directory may lack records: only when it is new, or its machine went down while it was
in use, until somebody has taken note.
"""

from __future__ import annotations

from millstream.log.directories.log_directory import LogDir
from millstream.ports.files import RealFiles
from millstream.sim.world.disk import MountedDisk, SimDisk


def in_use(disk: SimDisk) -> LogDir:
    """A directory that somebody has taken note of."""
    log_dir = opened(disk)
    log_dir.note_machine()
    return log_dir


def opened(disk: SimDisk) -> LogDir:
    """As a new process finds it."""
    log_dir = LogDir(MountedDisk(disk, lambda: 0), "/d")
    log_dir.open()
    log_dir.identify("cluster", 1)
    log_dir.read_state()
    return log_dir


def test_the_end_of_the_process_loses_nothing_and_that_of_the_machine_may() -> None:
    disk = SimDisk()
    assert not in_use(disk).may_lack_records
    disk.kill()
    assert not opened(disk).may_lack_records
    disk.crash()
    assert opened(disk).may_lack_records
    disk.kill()
    found = opened(disk)
    assert found.may_lack_records, "nobody has taken note yet"
    found.note_machine()
    assert not found.may_lack_records
    disk.kill()
    assert not opened(disk).may_lack_records


def test_a_clean_shutdown_before_the_machine_goes_down_loses_nothing() -> None:
    disk = SimDisk()
    in_use(disk).close(clean_broker_epoch=7)
    disk.crash()
    assert not opened(disk).may_lack_records


def test_a_new_directory_may_stand_for_one_that_is_lost() -> None:
    """An empty disk in its place: its broker must not lead what others still have."""
    disk = SimDisk()
    assert opened(disk).may_lack_records
    disk.kill()
    found = opened(disk)
    assert found.may_lack_records, "nobody has taken note yet"
    found.note_machine()
    disk.kill()
    assert not opened(disk).may_lack_records


def test_a_machine_has_one_name_from_start_to_start() -> None:
    assert RealFiles().boot_id() == RealFiles().boot_id()
