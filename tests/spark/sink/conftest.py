"""Brokers for the parts of the sink that need no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.local.broker import LocalBroker


@pytest.fixture
def protocol(shared_broker: LocalBroker) -> Iterator[Protocol]:
    made = Protocol(Connection(shared_broker.bootstrap))
    yield made
    made.close()


@pytest.fixture
def impatient(broker: Callable[..., LocalBroker]) -> LocalBroker:
    """A broker that looks for transactions beyond their timeout all the time."""
    return broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100})
