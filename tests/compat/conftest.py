"""Fixtures of the compatibility tests: a raw connection, and topics made by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from raw_client import RawConnection
from topics import create_topic

from millstream.cli.local_broker import LocalBroker

pytest.register_assert_rewrite("clients", "edge_case")


@pytest.fixture
def connection(shared_broker: LocalBroker) -> Iterator[RawConnection]:
    with RawConnection(shared_broker.bootstrap) as made:
        yield made


@pytest.fixture
def new_topic(shared_broker: LocalBroker, topic_name: str) -> Callable[..., str]:
    """``new_topic(partitions=1, **settings)``: a topic of this test; settings have underscores for dots."""
    made = 0

    def create(partitions: int = 1, **settings: object) -> str:
        nonlocal made
        made += 1
        return create_topic(shared_broker.bootstrap, f"{topic_name}-{made}", partitions, **settings)

    return create
