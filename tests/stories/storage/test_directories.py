"""Data directories that are not the ones that a broker had: empty mount points, and `serve
--existing`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.broker.app import StartError
from support.in_process import InProcessBroker


def started(*paths: Path) -> InProcessBroker:
    return InProcessBroker({"log.dirs": ",".join(map(str, paths))})


def test_empty_directory_in_place_of_a_known_one_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with started(one, two):
        pass
    shutil.move(two, tmp_path / "unmounted")
    two.mkdir()
    with pytest.raises(StartError, match=r"two is empty, .* is missing: is its disk mounted"):
        started(one, two).start()
    shutil.rmtree(two)
    shutil.move(tmp_path / "unmounted", two)
    with started(one, two):
        pass


def test_first_directory_with_the_metadata_is_missed_by_the_second(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with started(one, two):
        pass
    shutil.rmtree(one)
    with pytest.raises(StartError, match=r"one is empty, .* is missing"):
        started(one, two).start()


def test_lost_directory_is_replaced_when_the_loss_is_accepted(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with started(one, two):
        pass
    shutil.rmtree(two)
    two.mkdir()
    (two / "accept-data-loss").touch()
    for _ in range(2):
        with started(one, two):
            pass


def test_directories_may_be_added_and_taken_away(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for paths in ((one,), (one, two), (one, two, three), (one, two), (one,)):
        with started(*paths):
            pass


def serve(data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """For starts that are refused."""
    command = [sys.executable, "-m", "millstream", "serve", "--set", f"log.dirs={data}", *more]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ, check=False
    )


def test_serve_existing_refuses_a_new_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused = serve(data, "--existing")
    assert refused.returncode == 1
    assert "--existing rejects new directories" in refused.stderr
    assert not data.exists(), "nothing is made"


def test_existing_accepts_a_used_directory(tmp_path: Path) -> None:
    with started(tmp_path / "data"):
        pass
    # Refused for another reason, behind the check of the directories.
    refused = serve(tmp_path / "data", "--existing", "--set", "node.id=5")
    assert "belongs to the broker 0, not to 5" in refused.stderr
