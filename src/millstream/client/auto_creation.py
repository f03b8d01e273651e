"""Waiting for a topic that a broker creates because a client asked for it.

Brokers with ``auto.create.topics.enable`` answer that the topic is unknown, and create it in the
background. Only time distinguishes such a topic from one that will never exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.client.errors import ClientError
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

if TYPE_CHECKING:
    from millstream.client.protocol import Protocol

# A topic that exists is unknown to some brokers for a moment after its creation.
UNKNOWN_WAIT_S = 1.0
# Maximum time a broker may take to create a topic.
CREATION_WAIT_S = 10.0
_SETTING = "auto.create.topics.enable"
_BROKER_RESOURCE = 4


class CreationWait:
    """The time to wait for an unknown topic.

    After a second it asks the cluster whether it creates topics.
    """

    def __init__(self, creates: Callable[[], bool]) -> None:
        self._started_s = time.monotonic()
        self._creates = creates
        self._limit_s: float | None = None

    def is_over(self) -> bool:
        waited_s = time.monotonic() - self._started_s
        if waited_s <= UNKNOWN_WAIT_S:
            return False
        if self._limit_s is None:
            self._limit_s = CREATION_WAIT_S if self._creates() else UNKNOWN_WAIT_S
        return waited_s > self._limit_s


def creates_topics(protocol: Protocol) -> bool:
    """Return whether the cluster creates topics for clients; True if no broker answers."""
    try:
        node = protocol.brokers()[0].node
        resource = DescribeConfigsResource(
            resource_type=_BROKER_RESOURCE, resource_name=str(node), configuration_keys=[_SETTING]
        )
        response = protocol.ask(DescribeConfigsRequest(resources=[resource]), node=node)
    except (ClientError, IndexError):
        return True
    return all(
        config.value != "false"
        for result in response.results
        for config in result.configs
        if config.name == _SETTING
    )
