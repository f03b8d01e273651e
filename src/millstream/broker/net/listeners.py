"""The listener settings: parsing, validation, and the addresses that clients get."""

from __future__ import annotations

import socket
from typing import NamedTuple

from millstream.core.config import BrokerConfig
from millstream.core.settings import SettingError


class ListenerSpec(NamedTuple):
    """A listener as configured."""

    name: str
    host: str
    port: int


class Endpoint(NamedTuple):
    """A listener as bound, or as advertised to clients."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(setting: str, values: tuple[str, ...]) -> list[ListenerSpec]:
    """Parse NAME://HOST:PORT entries. An empty host means all interfaces."""
    specs: list[ListenerSpec] = []
    for text in values:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not (
            name
            and separator
            and colon
            and port.isdecimal()
            and port.isascii()
            and int(port) < 65536
        ):
            raise SettingError(
                f"Invalid value {text} for configuration {setting}: expected NAME://HOST:PORT",
                setting,
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
    """Return the listeners to open. Only PLAINTEXT is supported."""
    values = config.get("listeners")
    specs = parse_listeners("listeners", values if isinstance(values, tuple) else ())
    controllers = controller_listeners(config)
    specs = [spec for spec in specs if spec.name not in controllers]
    if not specs:
        raise SettingError(
            "listeners is empty; give at least one, for example PLAINTEXT://127.0.0.1:9092",
            "listeners",
        )
    protocols = _protocol_map(config)
    for spec in specs:
        protocol = protocols.get(spec.name)
        if protocol is None:
            raise SettingError(
                f"listener {spec.name} has no protocol in listener.security.protocol.map",
                "listeners",
            )
        if protocol != "PLAINTEXT":
            raise SettingError(
                f"listener {spec.name} has protocol {protocol}; only PLAINTEXT is supported",
                "listeners",
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
    """Return the addresses for clients: the setting, or else the listeners as reachable hosts."""
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
                f"advertised.listeners names {spec.name}, which is not in listeners",
                "advertised.listeners",
            )
        if spec.host in ("0.0.0.0", "::", ""):
            raise SettingError(
                f"advertised.listeners has {spec.host or 'an empty host'}; use an address that clients can reach",
                "advertised.listeners",
            )
        endpoints.append(Endpoint(spec.name, spec.host, spec.port or names[spec.name].port))
    return endpoints


def _reachable(host: str) -> str:
    """Return this machine's name for a bind-all address, which other machines cannot connect to."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
