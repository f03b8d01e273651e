"""File systems and addresses of this machine."""

from __future__ import annotations

from pathlib import Path

from millstream.cli.doctor.machine import file_system, is_here


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"a / overlay rw 0 0\nb {tmp_path} xfs rw 0 0\nc {tmp_path}-other nfs rw 0 0\n"
    )
    assert file_system(str(tmp_path / "data"), str(mounts)) == "xfs"
    assert file_system("/nowhere", str(mounts)) == "overlay"


def test_which_addresses_are_here() -> None:
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")
