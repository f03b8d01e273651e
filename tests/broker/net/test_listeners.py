"""Listener settings: opened listeners, advertised addresses, and errors."""

from __future__ import annotations

import socket

import pytest

from millstream.broker.net.listeners import Endpoint, ListenerSpec, advertised, listener_specs
from millstream.core.config import BrokerConfig
from millstream.core.settings import SettingError


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig.from_texts(
        {name.replace("_", "."): value for name, value in settings.items()}
    )


def test_default_is_one_plaintext_listener_on_localhost() -> None:
    assert listener_specs(config()) == [ListenerSpec("PLAINTEXT", "127.0.0.1", 9092)]


def test_listeners_may_have_custom_names() -> None:
    found = listener_specs(
        config(
            listeners="inside://[::1]:0, OUTSIDE://:9094",
            listener_security_protocol_map="INSIDE:PLAINTEXT,outside:plaintext",
        )
    )
    assert found == [ListenerSpec("INSIDE", "::1", 0), ListenerSpec("OUTSIDE", "0.0.0.0", 9094)]


def test_listeners_of_kraft_controllers_are_not_opened() -> None:
    settings = config(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="CONTROLLER",
    )
    assert listener_specs(settings) == [ListenerSpec("PLAINTEXT", "0.0.0.0", 9092)]
    bound = [Endpoint("PLAINTEXT", "0.0.0.0", 9092)]
    assert advertised(settings, bound) == [Endpoint("PLAINTEXT", "localhost", 9092)]


@pytest.mark.parametrize(
    ("listeners", "complaint"),
    [
        ("127.0.0.1:9092", "expected NAME://HOST:PORT"),
        ("PLAINTEXT://localhost", "expected NAME://HOST:PORT"),
        ("PLAINTEXT://localhost:port", "expected NAME://HOST:PORT"),
        ("PLAINTEXT://localhost:²", "expected NAME://HOST:PORT"),
        ("PLAINTEXT://localhost:65536", "expected NAME://HOST:PORT"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "must have a different name"),
        ("PLAINTEXT://a:1,SSL://a:1", "must have a different port"),
        ("", "give at least one"),
        ("INSIDE://a:1", "INSIDE has no protocol in listener.security.protocol.map"),
        ("SSL://a:1", "only PLAINTEXT is supported"),
    ],
)
def test_invalid_listener_is_rejected(listeners: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        listener_specs(config(listeners=listeners))


def test_bound_listeners_are_advertised_with_reachable_hosts() -> None:
    bound = [Endpoint("PLAINTEXT", "0.0.0.0", 4000), Endpoint("LOCAL", "127.0.0.1", 4001)]
    assert advertised(config(), bound) == [
        Endpoint("PLAINTEXT", socket.gethostname(), 4000),
        Endpoint("LOCAL", "127.0.0.1", 4001),
    ]


def test_advertised_port_0_means_the_bound_port() -> None:
    bound = [Endpoint("PLAINTEXT", "0.0.0.0", 4000)]
    found = advertised(config(advertised_listeners="PLAINTEXT://kafka.example:0"), bound)
    assert found == [Endpoint("PLAINTEXT", "kafka.example", 4000)]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("OTHER://a:1", "names OTHER, which is not in listeners"),
        ("PLAINTEXT://0.0.0.0:1", "use an address that clients can reach"),
        ("PLAINTEXT://:1", "use an address that clients can reach"),
        ("PLAINTEXT://[::]:1", "use an address that clients can reach"),
    ],
)
def test_unreachable_advertised_address_is_rejected(value: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        advertised(config(advertised_listeners=value), [Endpoint("PLAINTEXT", "127.0.0.1", 4000)])


def test_endpoint_is_formatted_as_in_kafka() -> None:
    assert str(Endpoint("PLAINTEXT", "host", 1)) == "PLAINTEXT://host:1"
    assert str(Endpoint("PLAINTEXT", "::1", 1)) == "PLAINTEXT://[::1]:1"
