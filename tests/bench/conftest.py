"""Puts the project's root on the path, since `bench` is run from there and not installed; and runs scenarios in small."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture
def runner_of(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """A runner against the peer of this name; what it started is gone afterwards."""
    from bench.__main__ import Runner
    from bench.measures import all_measures
    from bench.model import load_peers
    from bench.running import Workshop

    workshop = Workshop(str(tmp_path))
    yield lambda peer: Runner(workshop, [load_peers()[peer]], all_measures())
    workshop.close()
