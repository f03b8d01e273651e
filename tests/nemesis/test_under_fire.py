"""A cluster under fire for a moment: what ``make chaos`` does for minutes, short enough for every
change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.zookeeper import skip_without_zookeeper

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(300)  # half a minute, where nobody else needs the machine
def test_a_short_time_under_fire_breaks_no_promise(tmp_path: Path) -> None:
    skip_without_zookeeper()
    words = ["--seconds", "9", "--seed", "3", "--pace", "2", "--directory", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-m", "nemesis.run", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
