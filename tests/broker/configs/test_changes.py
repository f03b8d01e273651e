"""Brokers whose settings can be altered: live ones, and known ones that are down."""

from __future__ import annotations

import pytest

from millstream.broker.configs.changes import DELETE, SET, Change, broker_overrides
from millstream.control.image import ClusterImage, TopicImage
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode

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


def test_dynamic_setting_that_promises_security_is_refused() -> None:
    with pytest.raises(
        ApiError, match=r"ssl\.keystore\.location is refused: TLS is not supported"
    ) as refused:
        changed(ClusterImage(), "0", (SET, "ssl.keystore.location", "/k.jks"))
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    # One that an earlier version has stored can still be deleted, and others changed beside it.
    image = ClusterImage(broker_configs={"0": {"ssl.keystore.location": "/k.jks"}})
    assert changed(image, "0", (SET, RATE, "7")) == {"ssl.keystore.location": "/k.jks", RATE: "7"}
    assert changed(image, "0", (DELETE, "ssl.keystore.location", None)) == {}
