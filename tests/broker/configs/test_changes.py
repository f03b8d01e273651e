"""Brokers whose settings can be altered: live ones, and known ones that are down."""

from __future__ import annotations

import pytest

from millstream.broker.configs.changes import DELETE, SET, Change, broker_overrides
from millstream.control.image import ClusterImage, TopicImage
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError

RATE = "leader.replication.throttled.rate"


def changed(image: ClusterImage, name: str, change: Change) -> dict[str, str]:
    """Decide as broker 0, the only live one."""
    return broker_overrides(image, BrokerConfig.from_texts({}), 0, name, [change], replace=False)


def test_broker_that_is_down_is_known_by_replicas_or_settings() -> None:
    image = ClusterImage(broker_configs={"2": {RATE: "5"}})
    image.topics["t"] = TopicImage("t", bytes(16), replicas={0: (0, 1)})
    assert changed(image, "1", (SET, RATE, "7")) == {RATE: "7"}
    assert changed(image, "2", (DELETE, RATE, None)) == {}
    with pytest.raises(ApiError, match="Unexpected broker id, expected 0, but received 3"):
        changed(image, "3", (SET, RATE, "7"))


def test_last_setting_of_a_broker_that_is_down_can_be_deleted_again() -> None:
    """By a client that lost the response to its first request."""
    image = ClusterImage(broker_configs={"2": {}})
    assert changed(image, "2", (DELETE, RATE, None)) == {}
