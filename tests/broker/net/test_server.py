"""Limits of connections, idle connections, disconnects with pending requests, and shutdown."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from millstream.sim.world.disk import SimDisk
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.records.batch import Record, build_batch
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import Closed, RawClient, create_topic, fetch, fetch_request, produce


@contextlib.contextmanager
def serving(**settings: object):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with InProcessBroker({"log.dirs": "/data", **named}, files=SimDisk()) as broker:
        yield broker


def admitted(broker: InProcessBroker) -> RawClient | None:
    client = RawClient(broker.bootstrap)
    try:
        client.call(ApiVersionsRequest(), 0)
    except (Closed, ConnectionError):
        client.close()
        return None
    return client


@pytest.mark.parametrize(
    "settings",
    [
        {"max_connections": 3},
        {"max_connections_per_ip": 3},
        {
            "max_connections_per_ip": 100,
            "max_connections_per_ip_overrides": "10.0.0.1:1,127.0.0.1:3",
        },
    ],
    ids=["in all", "per ip", "override"],
)
def test_connections_beyond_the_limit_are_rejected(
    settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(**settings) as broker:
        clients = [admitted(broker) for _ in range(3)]
        assert all(clients)
        assert admitted(broker) is None
        assert "is reached" in caplog.text
        clients[0].close()  # type: ignore[union-attr]
        wait_until(
            lambda: broker.run(lambda: broker.broker.server.connection_count) == 2,
            "the place to be free",
        )
        last = admitted(broker)
        assert last is not None
        for client in [*clients[1:], last]:
            client.close()  # type: ignore[union-attr]


def test_request_above_the_size_limit_closes_the_connection() -> None:
    with serving(socket_request_max_bytes=1000) as broker, RawClient(broker.bootstrap) as client:
        client.write((1001).to_bytes(4, "big"))
        with pytest.raises(Closed):
            client.read_frame()


def stall(broker: InProcessBroker) -> RawClient:
    """A client that requests much and reads nothing."""
    client = RawClient(broker.bootstrap, receive_buffer=4096)
    create_topic(client, "large")
    for _ in range(8):
        produce(client, "large", 0, build_batch([Record(0, -1, None, bytes(900_000), ())]))
    client.send(fetch_request("large"), 11)
    return client


def half(broker: InProcessBroker) -> RawClient:
    client = RawClient(broker.bootstrap)
    client.write(b"\x00\x00\x01\x00half a request")
    return client


def idle(broker: InProcessBroker) -> RawClient:
    return RawClient(broker.bootstrap)


@pytest.mark.parametrize("make", [idle, half, stall])
def test_idle_connection_is_closed(
    make: Callable[[InProcessBroker], RawClient],
) -> None:
    with serving(
        connections_max_idle_ms=800
    ) as broker:  # longer than what a busy machine keeps a client from going on
        client = make(broker)
        wait_until(
            lambda: broker.run(lambda: broker.broker.server.connection_count) == 0,
            "it to be closed",
        )
        client.close()


def test_client_that_waits_for_a_response_is_not_idle() -> None:
    with serving(connections_max_idle_ms=50) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "quiet")
        answer = fetch(client, "quiet", max_wait_ms=800)
        assert (answer.error_code, answer.records) == (0, None) or answer.records == b""


def waiters(broker: InProcessBroker, topic: str) -> int:
    watchers = broker.run(lambda: broker.broker.parts.replicas.leader(topic, 0).waiters.watchers)
    return len(watchers or ())


def test_delayed_fetches_are_dropped_on_disconnect() -> None:
    with serving() as broker:
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "quiet")
        clients = [RawClient(broker.bootstrap) for _ in range(10)]
        for client in clients:
            for _ in range(5):
                client.send(fetch_request("quiet", max_wait_ms=3_600_000), 11)
        wait_until(lambda: waiters(broker, "quiet") == 50, "all fetches to wait")
        for client in clients[:5]:
            client.close()
        wait_until(lambda: waiters(broker, "quiet") == 25, "half of them to be forgotten")
        with RawClient(broker.bootstrap) as client:
            produce(client, "quiet", 0, build_batch([Record(0, -1, None, b"v", ())]))
        for client in clients[5:]:
            for _ in range(5):
                assert client.receive()[1].responses[0].partitions[0].records
            client.close()
        assert waiters(broker, "quiet") == 0
        wait_until(
            lambda: broker.run(lambda: broker.broker.server.connection_count) == 0, "all to be gone"
        )
        assert broker.run(lambda: dict(broker.broker.server._per_ip)) == {}


def test_disconnect_of_a_paused_connection_is_detected() -> None:
    """The connection does not read, because too many requests are pending."""
    with serving(connections_max_idle_ms=200, queued_max_requests=5) as broker:
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "quiet")
            for _ in range(100):
                client.send(fetch_request("quiet", max_wait_ms=3_600_000), 11)
            wait_until(lambda: waiters(broker, "quiet") == 5, "the first of them to wait")
        wait_until(lambda: waiters(broker, "quiet") == 0, "its fetches to be forgotten")
        assert broker.run(lambda: broker.broker.server.connection_count) == 0


def test_shutdown_sends_pending_responses() -> None:
    with serving() as broker:
        client = RawClient(broker.bootstrap)
        create_topic(client, "quiet")
        client.send(fetch_request("quiet", max_wait_ms=600), 11)
        wait_until(lambda: waiters(broker, "quiet") == 1, "the fetch to wait")
        stopping = threading.Thread(target=lambda: broker.wait(broker.broker.server.close()))
        stopping.start()
        _, answer = client.receive()
        assert answer.responses[0].partitions[0].error_code == 0
        client.wait_closed()
        stopping.join(20)
        with pytest.raises(ConnectionError):
            RawClient(broker.bootstrap)
        client.close()
