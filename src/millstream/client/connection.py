"""How every client reaches a cluster: bootstrap address, common settings, and failure diagnosis.

librdkafka retries forever in the background and reports little, but a tool needs the cause at once.
``check_reachable`` therefore tries the addresses before the first request. After a request without
a response, ``explain_silence`` checks whether the brokers advertise an address that this machine
cannot reach, which is the usual mistake with ``advertised.listeners``.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.client.errors import BrokerUnreachable, ClientError

DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_PORT = 9092
# The time for a call, including failovers; and the time for one response within it.
DEFAULT_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
# For consumers. librdkafka does not fetch a partition for a whole second after its queue of 64 MB
# was full, and a fast reader empties that sooner. Measured with records of 100 bytes: 1.6 instead
# of 0.7 to 1.2 million records per second.
FAST_REFETCH = {"fetch.queue.backoff.ms": 10}

# librdkafka logs every failed connection. Applications that want these lines add a handler.
logger = logging.getLogger("millstream.client")
logger.addHandler(logging.NullHandler())


# One or more addresses: "host:port,host:port", or a list of addresses, as other clients take it.
Bootstrap = str | Sequence[str]


def bootstrap_text(bootstrap: Bootstrap) -> str:
    """Return the addresses as one text; ClientError if they are neither a str nor a list of str."""
    if isinstance(bootstrap, str):
        return bootstrap
    if isinstance(bootstrap, Iterable) and not isinstance(bootstrap, bytes | bytearray | Mapping):
        addresses = [*bootstrap]
        if all(isinstance(address, str) for address in addresses):
            return ",".join(addresses)
    raise ClientError(
        f"{bootstrap!r} is not a bootstrap address",
        hint='give "host:port", or a list of such addresses: ["host1:9092", "host2:9092"]',
    )


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Split ``host:port,host:port`` into pairs.

    The port is optional; an IPv6 address needs brackets.
    """
    addresses = [
        _parse_address(address.strip(), bootstrap)
        for address in bootstrap.split(",")
        if address.strip()
    ]
    if not addresses:
        raise ClientError(
            "no bootstrap address given",
            hint=f"give one as host:port, for example {DEFAULT_BOOTSTRAP}",
        )
    return addresses


def _parse_address(address: str, whole: str) -> tuple[str, int]:
    plain = address.rpartition("://")[2]  # a broker prints PLAINTEXT://host:port when it is ready
    if plain.startswith("["):
        host, _, rest = plain[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = plain.partition(":")
    if not host or plain.endswith(":") or not _is_port(port or str(DEFAULT_PORT)):
        raise ClientError(
            f"{address!r} in the bootstrap address {whole!r} is not host:port",
            hint=f"for example {DEFAULT_BOOTSTRAP}",
        )
    return host, int(port) if port else DEFAULT_PORT


def _is_port(text: str) -> bool:
    return text.isdigit() and 0 < int(text) < 65536


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Connection:
    """The address of a cluster, the timeout of a call, and settings for librdkafka."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    timeout_s: float = DEFAULT_TIMEOUT_S
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def request_timeout_s(self) -> float:
        """The time to wait for one response before the request is repeated."""
        return min(self.timeout_s, REQUEST_TIMEOUT_S)

    def config(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration of a confluent-kafka client; the user's options win."""
        servers = ",".join(
            format_address(host, port) for host, port in parse_bootstrap(self.bootstrap)
        )
        defaults = {
            "bootstrap.servers": servers,
            "client.id": "millstream",
            "logger": logger,
            "reconnect.backoff.max.ms": 1000,
            "socket.nagle.disable": True,
            "enable.metrics.push": False,
        }
        return defaults | dict(more or {}) | dict(self.options)

    def check_reachable(self) -> None:
        """Raise BrokerUnreachable unless one of the bootstrap addresses accepts a connection."""
        if "test.mock.num.brokers" in self.options:
            return
        failures = []
        for host, port in parse_bootstrap(self.bootstrap):
            failure = why_unreachable(host, port)
            if failure is None:
                return
            failures.append(f"{format_address(host, port)}: {failure}")
        raise BrokerUnreachable(
            f"cannot reach a broker ({'; '.join(failures)})",
            hint="start one with `millstream serve`, or give the address of yours "
            "(--bootstrap, MILLSTREAM_BOOTSTRAP)",
        )


def why_unreachable(host: str, port: int, timeout_s: float = CONNECT_TIMEOUT_S) -> str | None:
    """Return why the address accepts no connection, or None if it does."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
        return None
    except socket.gaierror:
        return "unknown host"
    except TimeoutError:
        return f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def explain_silence(
    connection: Connection, brokers: Mapping[int, tuple[str, int]], doing: str
) -> BrokerUnreachable:
    """Explain a request without a response although a bootstrap address accepts connections."""
    for node, (host, port) in brokers.items():
        if failure := why_unreachable(host, port):
            return BrokerUnreachable(
                f"cannot {doing}: broker {node} advertises {format_address(host, port)}, "
                f"which cannot be reached from here ({failure})",
                hint="set advertised.listeners of that broker to an address that its clients can reach",
            )
    if brokers:
        return BrokerUnreachable(
            f"cannot {doing}: no answer within {connection.request_timeout_s:.0f} s",
            hint="the brokers accept connections but do not answer, as with changes while "
            "ZooKeeper is down; see `millstream doctor`, and their logs",
        )
    return BrokerUnreachable(
        f"cannot {doing}: {connection.bootstrap} accepts connections but does not answer as a Kafka broker",
        hint="check that the port is a PLAINTEXT listener of a broker",
    )
