"""The fixtures of pytest: brokers and clusters for one test, for a module or for the whole session.

    @pytest.mark.millstream(settings={"num.partitions": 3}, process=True)
    def test_orders(millstream): ...

    @pytest.mark.millstream(brokers=5)
    def test_fail_over(millstream_cluster): ...

    def test_payments(millstream_session): ...

``millstream`` and ``millstream_cluster`` are fresh for each test. ``millstream_module`` and
``millstream_session``, and the same for clusters, are shared: started once, for the first test that
asks. A marker of one test cannot set up a broker that other tests share. Module-scoped fixtures take
the marker of the module (``pytestmark``), session-scoped ones the fixture ``millstream_options``.

Only pytest is imported here: a run without these fixtures loads no broker.
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


_BROKER, _CLUSTER = ("settings", "process"), ("settings", "brokers")
_FIT = {"millstream": _BROKER, "millstream_cluster": _CLUSTER}
_SHARED = {
    "millstream_module": _BROKER,
    "millstream_cluster_module": _CLUSTER,
    "millstream_session": _BROKER,
    "millstream_cluster_session": _CLUSTER,
}


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the nearest markers say about this fixture of a test.

    An argument that fits no fixture of the test would be ignored silently, so it is refused.
    """
    names = _FIT[request.fixturename or ""]
    known = {name for fixture in _FIT if fixture in request.fixturenames for name in _FIT[fixture]} | {*names}
    options: dict[str, Any] = {}
    for node, marker in request.node.iter_markers_with_node("millstream"):
        # A marker of the module is also for the brokers that its tests share.
        fitting = known if _is_of_tests(node) else {*_BROKER, *_CLUSTER}
        options = _checked(marker, fitting, names, request) | options
    return options


def _module_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the markers of the module say about this fixture."""
    names = _SHARED[request.fixturename or ""]
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("millstream"):
        options = _checked(marker, {*_BROKER, *_CLUSTER}, names, request) | options
    return options


def _checked(
    marker: pytest.Mark, known: set[str], names: tuple[str, ...], request: pytest.FixtureRequest
) -> dict[str, Any]:
    if marker.args:
        pytest.fail("the marker `millstream` takes arguments by name, as settings={...}", pytrace=False)
    for name in marker.kwargs.keys() - known:
        pytest.fail(_unfit(name, names, request.fixturename or ""), pytrace=False)
    return {name: value for name, value in marker.kwargs.items() if name in names}


def _is_of_tests(node: object) -> bool:
    return isinstance(node, pytest.Item | pytest.Class)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker on a test whose brokers are all shared: it would be ignored silently."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in _SHARED if name in fixtures]
    if not shared or any(name in fixtures for name in _FIT):
        return
    if any(_is_of_tests(node) for node, _ in item.iter_markers_with_node("millstream")):
        pytest.fail(
            f"the marker `millstream` of a test does not fit `{shared[0]}`, which other tests share; "
            "mark the module, override `millstream_options`, or use `millstream`",
            pytrace=False,
        )


def _session_options(request: pytest.FixtureRequest, options: dict[str, Any]) -> dict[str, Any]:
    """Return what ``millstream_options`` says about this fixture."""
    for name in options.keys() - {*_BROKER, *_CLUSTER}:
        pytest.fail(
            f"the fixture `millstream_options` has {name!r}; it may have settings, process and brokers",
            pytrace=False,
        )
    return {name: options[name] for name in _SHARED[request.fixturename or ""] if name in options}


def _unfit(name: str, names: tuple[str, ...], fixture: str) -> str:
    homes = [one for one, fit in _FIT.items() if name in fit]
    message = (
        f"the marker `millstream` has {name!r} for the fixture `{homes[0]}` only"
        if homes
        else f"the marker `millstream` has no argument {name!r}"
    )
    return f"{message}; for `{fixture}` there are {' and '.join(names)}"


@pytest.fixture
def millstream(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A fresh broker: ``bootstrap``, ``produce``, ``consume``, ``topic``, ``faults``, ``advance``, ``kill``, ``restart``."""
    yield from _broker(_options(request))


@pytest.fixture
def millstream_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A fresh cluster of three brokers, or as many as the marker says."""
    yield from _cluster(_options(request))


@pytest.fixture(scope="module")
def millstream_module(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A broker that the tests of a module share."""
    yield from _broker(_module_options(request))


@pytest.fixture(scope="module")
def millstream_cluster_module(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster that the tests of a module share."""
    yield from _cluster(_module_options(request))


@pytest.fixture(scope="session")
def millstream_options() -> dict[str, Any]:
    """Arguments of the session's broker and cluster; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def millstream_session(request: pytest.FixtureRequest, millstream_options: dict[str, Any]) -> Iterator[Kafka]:
    """A broker that all tests of the session share, one for each worker of pytest-xdist."""
    yield from _broker(_session_options(request, millstream_options))


@pytest.fixture(scope="session")
def millstream_cluster_session(
    request: pytest.FixtureRequest, millstream_options: dict[str, Any]
) -> Iterator[Cluster]:
    """A cluster that all tests of the session share, one for each worker of pytest-xdist."""
    yield from _cluster(_session_options(request, millstream_options))


def _broker(options: dict[str, Any]) -> Iterator[Kafka]:
    from millstream.testing.start import broker

    with broker(**options) as kafka:
        yield kafka


def _cluster(options: dict[str, Any]) -> Iterator[Cluster]:
    from millstream.testing.thread_cluster import cluster

    with cluster(**options) as kafka:
        yield kafka
