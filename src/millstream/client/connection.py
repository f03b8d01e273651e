"""How every client reaches a cluster: the bootstrap address, the settings common to all, and why it
cannot be reached.

librdkafka retries for ever in the background and says little. A tool wants the cause at once, so
``check_reachable`` tries the addresses itself before the first request, and ``explain_silence``
looks, after a request went unanswered, whether the brokers advertise an address that this machine
cannot reach: the usual trap of ``advertised.listeners``.
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
# How long a call may take in all, fail-overs included; and how long one request of it waits for its
# answer.
DEFAULT_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
# For consumers. librdkafka leaves a partition alone for a whole second once its queue of 64 MB is
# full, and a quick reader has emptied that long before: measured, 0.7 to 1.2 instead of 1.6 million
# records of 100 bytes a second.
FAST_REFETCH = {"fetch.queue.backoff.ms": 10}

# librdkafka reports every failed connection as a log line; who wants them gives this logger a
# handler.
logger = logging.getLogger("millstream.client")
logger.addHandler(logging.NullHandler())


# One address or several: "host:port,host:port", or a list of addresses, as other clients take it.
Bootstrap = str | Sequence[str]


def bootstrap_text(bootstrap: Bootstrap) -> str:
    """Return the addresses as one text; ClientError for what is neither a text nor a list of texts."""
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
    """``host:port,host:port`` as pairs; the port may be left out, an IPv6 address stands in
    brackets.
    """
    addresses = [_parse_address(one.strip(), bootstrap) for one in bootstrap.split(",") if one.strip()]
    if not addresses:
        raise ClientError(
            "no bootstrap address given", hint=f"give one as host:port, for example {DEFAULT_BOOTSTRAP}"
        )
    return addresses


def _parse_address(address: str, whole: str) -> tuple[str, int]:
    plain = address.rpartition("://")[2]  # PLAINTEXT://host:port is what the broker prints when it is ready
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
    """Where a cluster is, how long to wait for it in all, and settings passed to librdkafka as they
    are.
    """

    bootstrap: str = DEFAULT_BOOTSTRAP
    timeout_s: float = DEFAULT_TIMEOUT_S
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def request_timeout_s(self) -> float:
        """How long to wait for one answer before asking again."""
        return min(self.timeout_s, REQUEST_TIMEOUT_S)

    def config(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The configuration of a confluent-kafka client; the user's options win."""
        servers = ",".join(format_address(host, port) for host, port in parse_bootstrap(self.bootstrap))
        ours = {
            "bootstrap.servers": servers,
            "client.id": "millstream",
            "logger": logger,
            "reconnect.backoff.max.ms": 1000,
            "socket.nagle.disable": True,
            "enable.metrics.push": False,
        }
        return ours | dict(more or {}) | dict(self.options)

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
            hint="start one with `millstream serve`, or give the address of yours (--bootstrap, MILLSTREAM_BOOTSTRAP)",
        )


def why_unreachable(host: str, port: int, timeout_s: float = CONNECT_TIMEOUT_S) -> str | None:
    """None if the address accepts a connection, else the cause in a few words."""
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
    """Why a request was not answered although a bootstrap address accepts connections."""
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
            hint="the brokers accept connections but do not answer, as they do to changes while ZooKeeper is away; see `millstream doctor`, and their logs",
        )
    return BrokerUnreachable(
        f"cannot {doing}: {connection.bootstrap} accepts connections but does not answer as a Kafka broker",
        hint="see that the port is a plain-text listener of a broker",
    )
