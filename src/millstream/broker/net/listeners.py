"""Listener settings: where to listen, what to advertise, and what is wrong with them."""

from __future__ import annotations

import socket
from typing import NamedTuple

from millstream.core.config import BrokerConfig
from millstream.core.settings import SettingError


class ListenerSpec(NamedTuple):
    """A listener as the setting has it."""

    name: str
    host: str
    port: int


class Endpoint(NamedTuple):
    """A listener as it is, or as clients are told to reach it."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(setting: str, values: tuple[str, ...]) -> list[ListenerSpec]:
    """NAME://HOST:PORT entries; an empty host means every interface."""
    specs: list[ListenerSpec] = []
    for text in values:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not (name and separator and colon and port.isdecimal() and port.isascii() and int(port) < 65536):
            raise SettingError(
                f"Invalid value {text} for configuration {setting}: expected NAME://HOST:PORT", setting
            )
        specs.append(ListenerSpec(name.upper(), host.strip("[]"), int(port)))
    if len({spec.name for spec in specs}) < len(specs):
        raise SettingError(
            f"Each listener must have a different name, {setting}: {','.join(values)}", setting
        )
    ports = [spec.port for spec in specs if spec.port]
    if setting == "listeners" and len(set(ports)) < len(ports):
        raise SettingError(
            f"Each listener must have a different port, {setting}: {','.join(values)}", setting
        )
    return specs


def listener_specs(config: BrokerConfig) -> list[ListenerSpec]:
    """The listeners to open; only PLAINTEXT can be served so far."""
    values = config.get("listeners")
    specs = parse_listeners("listeners", values if isinstance(values, tuple) else ())
    controllers = controller_listeners(config)
    specs = [spec for spec in specs if spec.name not in controllers]
    if not specs:
        raise SettingError(
            "listeners is empty: a broker needs at least one, e.g. PLAINTEXT://127.0.0.1:9092", "listeners"
        )
    protocols = _protocol_map(config)
    for spec in specs:
        protocol = protocols.get(spec.name)
        if protocol is None:
            raise SettingError(
                f"listener {spec.name} has no protocol in listener.security.protocol.map", "listeners"
            )
        if protocol != "PLAINTEXT":
            raise SettingError(
                f"listener {spec.name} wants {protocol}; only PLAINTEXT is supported so far", "listeners"
            )
    return [ListenerSpec(spec.name, spec.host or "0.0.0.0", spec.port) for spec in specs]


def controller_listeners(config: BrokerConfig) -> set[str]:
    """Return the listeners of KRaft controllers, which are not opened: there is no KRaft here."""
    names = config.get("controller.listener.names")
    return {name.strip().upper() for name in str(names or "").split(",") if name.strip()}


def _protocol_map(config: BrokerConfig) -> dict[str, str]:
    entries = config.get("listener.security.protocol.map")
    assert isinstance(entries, tuple)
    pairs = (entry.partition(":") for entry in entries)
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}


def advertised(config: BrokerConfig, bound: list[Endpoint]) -> list[Endpoint]:
    """What clients are told: the setting, else the listeners with a host that can be reached."""
    values = config.get("advertised.listeners")
    if not isinstance(values, tuple) or not values:
        return [Endpoint(e.name, _reachable(e.host), e.port) for e in bound]
    names = {endpoint.name: endpoint for endpoint in bound}
    endpoints = []
    controllers = controller_listeners(config)
    for spec in parse_listeners("advertised.listeners", values):
        if spec.name in controllers:
            continue
        if spec.name not in names:
            raise SettingError(
                f"advertised.listeners names {spec.name}, which is not in listeners", "advertised.listeners"
            )
        if spec.host in ("0.0.0.0", "::", ""):
            raise SettingError(
                f"advertised.listeners: {spec.host or 'an empty host'} tells clients nothing; use an address they can reach",
                "advertised.listeners",
            )
        endpoints.append(Endpoint(spec.name, spec.host, spec.port or names[spec.name].port))
    return endpoints


def _reachable(host: str) -> str:
    """A bind-all address cannot be connected to from elsewhere: advertise this machine's name instead."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
