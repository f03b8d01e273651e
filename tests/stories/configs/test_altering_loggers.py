"""Logger settings belong to one broker.

In a request with other resources, loggers are changed by the broker that received it, and the rest
by the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.wire.messages.alter_configs import AlterableConfig as Replacement
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.alter_configs import AlterConfigsResource as Replaced
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.clusters import InProcessCluster
from support.processes import wait_until

TOPIC, LOGGER = 2, 8
SET = 0
INVALID_REQUEST, UNKNOWN_TOPIC = 42, 3
NAME = "millstream.fetcher"


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger(NAME).level
    yield
    logging.getLogger(NAME).setLevel(before)


def changed(kind: int, resource: str, name: str, value: str) -> AlterConfigsResource:
    config = AlterableConfig(name=name, config_operation=SET, value=value)
    return AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])


def replaced(kind: int, resource: str, name: str, value: str) -> Replaced:
    return Replaced(
        resource_type=kind, resource_name=resource, configs=[Replacement(name=name, value=value)]
    )


def shown(answer: Any) -> list[tuple[int, str, int]]:
    return [(row.resource_type, row.resource_name, row.error_code) for row in answer.responses]


def overrides(cluster: InProcessCluster, topic: str) -> dict[str, str]:
    broker: Any = cluster.brokers[0].broker
    return dict(broker.image.topic_configs.get(topic, {}))


@pytest.mark.parametrize("node", range(3))
@pytest.mark.parametrize("version", [0, 1])
def test_loggers_are_changed_locally_and_the_rest_by_the_controller(
    shared_cluster: InProcessCluster, node: int, version: int
) -> None:
    topic = f"logged-{node}-{version}"
    shared_cluster.create_topic(topic)
    request = IncrementalAlterConfigsRequest(
        resources=[
            changed(TOPIC, "nothing", "retention.ms", "1"),
            changed(LOGGER, str(node), NAME, "ERROR"),
            changed(TOPIC, topic, "retention.ms", "7777"),
            changed(LOGGER, "99", NAME, "DEBUG"),
        ]
    )
    with shared_cluster.client(node) as client:
        answer = client.call(request, version)
    assert shown(answer) == [
        (TOPIC, "nothing", UNKNOWN_TOPIC),
        (LOGGER, str(node), 0),
        (TOPIC, topic, 0),
        (LOGGER, "99", INVALID_REQUEST),
    ]
    assert logging.getLogger(NAME).level == logging.ERROR
    wait_until(
        lambda: overrides(shared_cluster, topic) == {"retention.ms": "7777"}, "the topic's setting"
    )


@pytest.mark.parametrize("node", range(3))
def test_the_rest_is_changed_if_loggers_cannot_be_replaced(
    shared_cluster: InProcessCluster, node: int
) -> None:
    topic = f"replaced-{node}"
    shared_cluster.create_topic(topic)
    request = AlterConfigsRequest(
        resources=[
            replaced(LOGGER, str(node), NAME, "ERROR"),
            replaced(TOPIC, topic, "retention.ms", "8888"),
        ]
    )
    with shared_cluster.client(node) as client:
        answer = client.call(request, 2)
    assert shown(answer) == [(LOGGER, str(node), INVALID_REQUEST), (TOPIC, topic, 0)]
    wait_until(
        lambda: overrides(shared_cluster, topic) == {"retention.ms": "8888"}, "the topic's setting"
    )
