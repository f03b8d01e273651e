"""The fixtures of pytest: ``millstream``, a fresh broker for one test, and ``millstream_cluster``, three of them.

    @pytest.mark.millstream(settings={"num.partitions": 3}, process=True)
    def test_orders(millstream): ...

    @pytest.mark.millstream(brokers=5)
    def test_fail_over(millstream_cluster): ...

Nothing but pytest is imported here: a run that uses neither fixture loads no broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from millstream.testing.kafka import Kafka
    from millstream.testing.thread_cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "millstream(settings=None, process=False, brokers=3): how the broker of the fixture `millstream`, or the brokers of "
        "`millstream_cluster`, are made",
    )


_FIT = {"millstream": ("settings", "process"), "millstream_cluster": ("settings", "brokers")}


def _wanted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the nearest markers say about this fixture. What fits no fixture of the test would be ignored silently: it is refused."""
    names = _FIT[request.fixturename or ""]
    known = {name for fixture in _FIT if fixture in request.fixturenames for name in _FIT[fixture]} | {*names}
    found: dict[str, Any] = {}
    for marker in request.node.iter_markers("millstream"):
        if marker.args:
            pytest.fail("the marker `millstream` takes arguments by name, as settings={...}", pytrace=False)
        for name in marker.kwargs.keys() - known:
            pytest.fail(_unfit(name, names, request.fixturename or ""), pytrace=False)
        found = {name: value for name, value in marker.kwargs.items() if name in names} | found
    return found


def _unfit(name: str, names: tuple[str, ...], fixture: str) -> str:
    homes = [one for one, fit in _FIT.items() if name in fit]
    said = (
        f"the marker `millstream` has {name!r} for the fixture `{homes[0]}` only"
        if homes
        else (f"the marker `millstream` has no argument {name!r}")
    )
    return f"{said}; for `{fixture}` there are {' and '.join(names)}"


@pytest.fixture
def millstream(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A fresh broker: ``bootstrap``, ``produce``, ``consume``, ``topic``, ``faults``, ``advance``, ``kill``, ``restart``."""
    from millstream.testing.start import broker

    with broker(**_wanted(request)) as kafka:
        yield kafka


@pytest.fixture
def millstream_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A fresh cluster of three brokers, or as many as the marker says."""
    from millstream.testing.thread_cluster import cluster

    with cluster(**_wanted(request)) as kafka:
        yield kafka
