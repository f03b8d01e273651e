"""Pytest fixtures: brokers and clusters for a test, for a module or for the whole session.

    @pytest.mark.millstream(settings={"num.partitions": 3}, process=True)
    def test_orders(millstream): ...

    @pytest.mark.millstream(brokers=5)
    def test_fail_over(millstream_cluster): ...

    def test_payments(millstream_session): ...

``millstream`` and ``millstream_cluster`` are fresh for each test. ``millstream_module`` and
``millstream_session``, and the same for clusters, are shared and start with the first test that
uses them. The marker of a test cannot configure a broker that other tests share. Module-scoped
fixtures use the marker of the module (``pytestmark``), session-scoped ones the fixture
``millstream_options``.

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
        "millstream(settings=None, process=False, brokers=3): options of the fixtures `millstream` and "
        "`millstream_cluster`",
    )


_BROKER, _CLUSTER = ("settings", "process"), ("settings", "brokers")
_ARGUMENTS = {"millstream": _BROKER, "millstream_cluster": _CLUSTER}
_SHARED = {
    "millstream_module": _BROKER,
    "millstream_cluster_module": _CLUSTER,
    "millstream_session": _BROKER,
    "millstream_cluster_session": _CLUSTER,
}


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of a test's fixture from its markers; the nearest marker wins.

    An argument that no fixture of the test uses would be ignored silently, so it is refused.
    """
    names = _ARGUMENTS[request.fixturename or ""]
    known = {
        name
        for fixture in _ARGUMENTS
        if fixture in request.fixturenames
        for name in _ARGUMENTS[fixture]
    } | {*names}
    options: dict[str, Any] = {}
    for node, marker in request.node.iter_markers_with_node("millstream"):
        # A marker of the module also configures the brokers that its tests share.
        allowed = known if _is_of_tests(node) else {*_BROKER, *_CLUSTER}
        options = _checked(marker, allowed, names, request) | options
    return options


def _module_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of this fixture from the markers of the module."""
    names = _SHARED[request.fixturename or ""]
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("millstream"):
        options = _checked(marker, {*_BROKER, *_CLUSTER}, names, request) | options
    return options


def _checked(
    marker: pytest.Mark, known: set[str], names: tuple[str, ...], request: pytest.FixtureRequest
) -> dict[str, Any]:
    if marker.args:
        pytest.fail(
            "the marker `millstream` takes keyword arguments, such as settings={...}", pytrace=False
        )
    for name in marker.kwargs.keys() - known:
        pytest.fail(_unknown_argument(name, names, request.fixturename or ""), pytrace=False)
    return {name: value for name, value in marker.kwargs.items() if name in names}


def _is_of_tests(node: object) -> bool:
    return isinstance(node, pytest.Item | pytest.Class)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker on a test whose brokers are all shared: it would be ignored silently."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in _SHARED if name in fixtures]
    if not shared or any(name in fixtures for name in _ARGUMENTS):
        return
    if any(_is_of_tests(node) for node, _ in item.iter_markers_with_node("millstream")):
        pytest.fail(
            f"the marker `millstream` of a test cannot configure `{shared[0]}`, which other tests share; "
            "mark the module, override `millstream_options`, or use `millstream`",
            pytrace=False,
        )


def _session_options(request: pytest.FixtureRequest, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of this fixture from ``millstream_options``."""
    for name in options.keys() - {*_BROKER, *_CLUSTER}:
        pytest.fail(
            f"the fixture `millstream_options` has an unknown option {name!r}; use settings, process or brokers",
            pytrace=False,
        )
    return {name: options[name] for name in _SHARED[request.fixturename or ""] if name in options}


def _unknown_argument(name: str, names: tuple[str, ...], fixture: str) -> str:
    users = [user for user, arguments in _ARGUMENTS.items() if name in arguments]
    message = (
        f"the argument {name!r} of the marker `millstream` is only for the fixture `{users[0]}`"
        if users
        else f"the marker `millstream` has no argument {name!r}"
    )
    return f"{message}; `{fixture}` takes {' and '.join(names)}"


@pytest.fixture
def millstream(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A fresh broker for each test.

    See ``Kafka`` for its methods, such as ``produce``, ``consume``, ``advance`` and ``restart``.
    """
    yield from _broker(_options(request))


@pytest.fixture
def millstream_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A fresh cluster of three brokers, or the number in the marker."""
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
    """Options of the session's broker and cluster; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def millstream_session(
    request: pytest.FixtureRequest, millstream_options: dict[str, Any]
) -> Iterator[Kafka]:
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
