"""Single requests at the edge of the protocol, answered with the code that Apache Kafka gives
(tables in ``edge_*.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat import (
    edge_cluster,
    edge_configs,
    edge_fetch,
    edge_group_configs,
    edge_produce,
    edge_topics,
)
from compat.edge_case import Case, World
from millstream.local.broker import LocalBroker

CASES: list[Case] = [
    *edge_produce.CASES,
    *edge_fetch.CASES,
    *edge_topics.CASES,
    *edge_configs.CASES,
    *edge_group_configs.CASES,
    *edge_cluster.CASES,
]


@pytest.fixture(scope="module")
def world(shared_broker: LocalBroker) -> Iterator[World]:
    made = World(shared_broker.bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_edge_case(world: World, case: Case) -> None:
    case.check(world)
