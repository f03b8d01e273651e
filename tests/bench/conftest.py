"""Fixtures for small runs of scenarios."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def runner_of(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """A runner against the peer of this name; all it started is removed afterwards."""
    from bench.__main__ import Runner
    from bench.measures import all_measures
    from bench.model import load_peers
    from bench.running import Workshop

    workshop = Workshop(str(tmp_path))
    yield lambda peer: Runner(workshop, [load_peers()[peer]], all_measures())
    workshop.close()
