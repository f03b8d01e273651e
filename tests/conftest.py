"""Fixtures for every test: a real broker process on a free port, shared or for one test.

``shared_broker``  One broker for the session. Use it with your own topics (``topic_name``), and do
                   not kill it.
``quick_broker``   The same, but its groups begin at once instead of waiting three seconds for more
                   members.
``broker``         A factory: ``b = broker()`` or ``broker({"num.partitions": 4})``; then
                   ``b.bootstrap``, ``b.kill()``, ``b.restart()`` (same port, same data),
                   ``b.stop()``, ``b.output()``, ``b.data_dir``, ``b.pid``.

With ``MILLSTREAM_TEST_BOOTSTRAP=host:port`` the shared broker is that one, for example an Apache
Kafka: this shows whether a test expects what Kafka does. Processes are stopped by their pid when
the fixture ends, whether the test passed or not.
"""

from __future__ import annotations

import atexit
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest

from millstream.local.broker import LocalBroker

# The fixtures that users get: `millstream` and `millstream_cluster`. tests/cli has a `millstream`
# of its own, which wins there.
pytest_plugins = ("millstream.testing.plugin", "pytester")

# How long examples take says how busy the machine is, nothing about what is tested.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Folders of tests that mostly wait, for processes and timeouts. They run first: a long file that
# begins last would keep one worker busy and the others idle.
SLOW = tuple(
    f"tests/{folder}/"
    for folder in (
        "stories",
        "cli/up",
        "client/dead_letters",
        "nemesis",
        "robust",
        "sim",
        "broker/migration",
        "testing",
        "ports",
        "pipelines",
    )
)

BrokerFactory = Callable[..., LocalBroker]

# A shared broker lives for minutes, and tests write records with fixed times of long ago: retention
# would delete them under a test.
SHARED = {"log.retention.check.interval.ms": 86_400_000}

_started: list[LocalBroker] = []


class ForeignBroker(LocalBroker):
    """A broker that runs already and that no test may stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__("")
        self.host, _, port = bootstrap.rpartition(":")
        self.port = int(port)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))


def _start(directory: Path, settings: Mapping[str, object] | None) -> LocalBroker:
    broker = LocalBroker(directory, settings)
    _started.append(broker)
    return broker.start()


def _kill_all(brokers: list[LocalBroker]) -> None:
    for broker in brokers:
        if broker.running:
            broker.kill()


# The last resort, for a session that ends without running its finalizers.
atexit.register(_kill_all, _started)


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    if bootstrap := os.environ.get("MILLSTREAM_TEST_BOOTSTRAP"):
        yield ForeignBroker(bootstrap)
        return
    broker = _start(tmp_path_factory.mktemp("shared-broker"), SHARED)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    settings = SHARED | {
        "group.initial.rebalance.delay.ms": 0,
        "transaction.partition.verification.enable": "false",
    }
    broker = _start(tmp_path_factory.mktemp("quick-broker"), settings)
    yield broker
    broker.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """A factory of brokers that belong to one test; each gets a directory of its own unless one is
    given.
    """
    mine: list[LocalBroker] = []

    def start(
        settings: Mapping[str, object] | None = None, *, directory: Path | None = None
    ) -> LocalBroker:
        mine.append(_start(directory or tmp_path / f"broker-{len(mine)}", settings))
        return mine[-1]

    yield start
    _kill_all(mine)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name)[:60].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}"
