"""The file port: one set of promises for the real disk and the simulated one, and what only the
real one shows.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.ports.files import Files, FileSlice, RealFile, RealFiles
from millstream.sim.world.disk import SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    if request.param == "real":
        return RealFiles(), str(tmp_path)
    simulated = SimDisk()
    simulated.makedirs("/data")
    return simulated, "/data"


def test_both_implement_the_port() -> None:
    assert isinstance(RealFiles(), Files)
    assert isinstance(SimDisk(), Files)


def test_appends_are_read_back_anywhere(disk: tuple[Files, str]) -> None:
    files, root = disk
    file = files.open(f"{root}/log", create=True)
    file.append((b"hello ", memoryview(bytearray(b"wide "))))
    file.append((b"world",))
    assert file.size == 16
    assert file.pread(6, 4) == b"wide"
    assert file.pread(11, 100) == b"world"
    assert file.pread(16, 10) == b""
    assert files.size(f"{root}/log") == 16
    assert files.open(f"{root}/log").size == 16


def test_a_read_that_need_not_wait_returns_the_bytes(disk: tuple[Files, str]) -> None:
    files, root = disk
    file = files.open(f"{root}/log", create=True)
    file.append((b"0123456789",))
    assert file.pread_nowait(2, 3) == b"234"
    assert file.pread_nowait(8, 5) == b"89"


def test_truncating_cuts_the_end_and_appends_go_on_there(disk: tuple[Files, str]) -> None:
    files, root = disk
    file = files.open(f"{root}/log", create=True)
    file.append((b"0123456789",))
    file.truncate(4)
    file.append((b"ab",))
    assert files.read_bytes(f"{root}/log") == b"0123ab"


def test_a_missing_file_is_not_made_by_opening_it(disk: tuple[Files, str]) -> None:
    files, root = disk
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/nothing")
    with pytest.raises(FileNotFoundError):
        files.read_bytes(f"{root}/nothing")
    with pytest.raises(FileNotFoundError):
        files.rename(f"{root}/nothing", f"{root}/something")
    assert not files.exists(f"{root}/nothing")


def test_names_can_be_listed_renamed_and_removed(disk: tuple[Files, str]) -> None:
    files, root = disk
    files.makedirs(f"{root}/a/b")
    files.write_bytes(f"{root}/a/one", b"1")
    files.write_bytes(f"{root}/a/two", b"22")
    files.rename(f"{root}/a/one", f"{root}/a/two")
    assert sorted(files.listdir(f"{root}/a")) == ["b", "two"]
    assert files.read_bytes(f"{root}/a/two") == b"1"
    assert files.is_dir(f"{root}/a/b")
    assert not files.is_dir(f"{root}/a/two")
    files.unlink(f"{root}/a/two")
    files.rmtree(f"{root}/a")
    assert not files.exists(f"{root}/a")


def test_an_atomic_write_replaces_the_contents_and_leaves_nothing_else(
    disk: tuple[Files, str],
) -> None:
    files, root = disk
    files.write_atomic(f"{root}/checkpoint", b"a long first version")
    files.write_atomic(f"{root}/checkpoint", b"second")
    assert files.read_bytes(f"{root}/checkpoint") == b"second"
    assert files.read_end(f"{root}/checkpoint", 3) == b"ond"
    assert files.read_end(f"{root}/checkpoint", 100) == b"second"
    assert files.listdir(root) == ["checkpoint"]


def test_a_slice_stays_readable_after_its_file_is_deleted(disk: tuple[Files, str]) -> None:
    files, root = disk
    file = files.open(f"{root}/log", create=True)
    file.append((b"0123456789",))
    piece = FileSlice(file, 2, 6)
    del file
    files.unlink(f"{root}/log")
    assert piece.read() == b"234567"
    assert piece.read(1, 2) == b"34"
    assert piece.read(4, 100) == b"67"
    assert piece.read_nowait(3) == b"567"


def test_a_lock_is_held_by_one_at_a_time(disk: tuple[Files, str]) -> None:
    files, root = disk
    lock = files.lock(f"{root}/.lock")
    assert lock is not None
    assert files.lock(f"{root}/.lock") is None
    lock.release()
    again = files.lock(f"{root}/.lock")
    assert again is not None
    again.release()


def test_syncing_changes_no_contents(disk: tuple[Files, str]) -> None:
    files, root = disk
    file = files.open(f"{root}/log", create=True)
    file.append((b"abc",))
    file.start_writeback(0, 3)
    file.sync()
    files.sync_file(f"{root}/log")
    files.sync_dir(root)
    files.sync_all(root)
    total, usable = files.space(root)
    assert total >= usable >= 0
    assert files.free_bytes(root) > 0
    assert files.read_bytes(f"{root}/log") == b"abc"


# -- the real disk


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process may grow beyond so many bytes: a write in the middle of which the
    disk is full.
    """
    limit = 10_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, small_files: int
) -> None:
    path = str(tmp_path / "log")
    file = RealFile(path, create=True)
    file.append((b"x" * 9_000,))
    with pytest.raises(OSError):
        file.append((b"y" * 500, b"z" * 5_000))
    assert file.size == 9_000
    assert os.stat(path).st_size == 9_000
    file.append((b"w" * 1_000,))
    assert file.pread(8_999, 2) == b"xw"


def test_more_pieces_than_one_system_call_takes_are_written(tmp_path: Path) -> None:
    file = RealFile(str(tmp_path / "log"), create=True)
    file.append([b"%04d" % n for n in range(3000)])
    assert file.size == 12_000
    assert file.pread(4 * 2999, 4) == b"2999"


def test_the_descriptor_closes_with_the_last_reference(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    if before is None:
        pytest.skip("no /proc here")
    file = RealFile(str(tmp_path / "log"), create=True)
    piece = FileSlice(file, 0, 0)
    del file
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del piece
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_read_of_pages_that_are_not_in_memory_does_not_lie(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    file = RealFile(path, create=True)
    data = os.urandom(1 << 20)
    file.append((data,))
    file.sync()
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert file.pread_nowait(0, 1 << 20) in (None, data)
    assert file.pread(0, 1 << 20) == data
    assert file.pread_nowait(0, 1 << 20) == data


def test_another_process_is_locked_out(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = RealFiles().lock(path)
    assert lock is not None
    program = (
        f"from millstream.ports.files import RealFiles; print(RealFiles().lock({path!r}) is None)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "True"
    lock.release()
