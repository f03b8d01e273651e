"""Fixtures of the compatibility tests: a raw connection, and topics made by it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from compat.quick_settings import QUICK
from compat.raw_client import RawConnection
from compat.topics import create_topic
from millstream.local.broker import LocalBroker

pytest.register_assert_rewrite("compat.clients", "compat.edge_case", "compat.coordinator_case")


@pytest.fixture(scope="session")
def quick_broker(
    shared_broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBroker]:
    """One for all tests of groups and transactions that do not kill it; the shared one where that
    is not ours to start.
    """
    if "MILLSTREAM_TEST_BOOTSTRAP" in os.environ:
        yield shared_broker
        return
    broker = LocalBroker(tmp_path_factory.mktemp("quick-broker"), QUICK).start()
    yield broker
    broker.kill()


@pytest.fixture
def connection(shared_broker: LocalBroker) -> Iterator[RawConnection]:
    with RawConnection(shared_broker.bootstrap) as made:
        yield made


@pytest.fixture
def new_topic(shared_broker: LocalBroker, topic_name: str) -> Callable[..., str]:
    """``new_topic(partitions=1, **settings)``: a topic of this test; settings have underscores for
    dots.
    """
    made = 0

    def create(partitions: int = 1, **settings: object) -> str:
        nonlocal made
        made += 1
        return create_topic(shared_broker.bootstrap, f"{topic_name}-{made}", partitions, **settings)

    return create


@pytest.fixture
def new_quick_topic(quick_broker: LocalBroker, topic_name: str) -> Callable[..., str]:
    """``new_topic`` on the broker for groups and transactions."""
    names = (f"{topic_name}-{number}" for number in itertools.count(1))

    def create(partitions: int = 1, **settings: object) -> str:
        return create_topic(quick_broker.bootstrap, next(names), partitions, **settings)

    return create
