"""Connections between brokers: version negotiation, and requests of dropped connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from millstream.broker.handlers import api_versions
from millstream.cluster.peers import NoCommonVersion, PeerGone, Peers, software_version
from millstream.ports.network import SocketNetwork
from millstream.wire.apis import APIS
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.controller_feed import ControllerFeedRequest
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from support.in_process import InProcessBroker
from support.raw import RawClient

MARKERS, FETCH, FEED = 27, 1, 30000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker({"log.dirs": tmp_path / "data"}) as broker:
        yield broker


def asked(broker: InProcessBroker, test: Callable[[Peers, str, int], Awaitable[None]]) -> None:
    async def run() -> None:
        peers = Peers(SocketNetwork(), "broker-7")
        host, _, port = broker.bootstrap.rpartition(":")
        try:
            await test(peers, host, int(port))
        finally:
            peers.close()

    asyncio.run(run())


def serving(monkeypatch: pytest.MonkeyPatch, key: int, newest: int | None) -> None:
    """The response of a broker of another release."""
    others = [api for api in APIS if api.key != key]
    (this,) = [api for api in APIS if api.key == key]
    rows = others if newest is None else [*others, this._replace(max_version=newest)]
    monkeypatch.setattr(api_versions, "APIS", tuple(rows))


def test_version_of_a_build_between_releases_is_accepted(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert software_version("0.1.0") == "0.1.0"
    monkeypatch.setattr("millstream.cluster.peers.__version__", "0.2.dev12+g1a2b3c4d5.d20260301")

    async def test(peers: Peers, host: str, port: int) -> None:
        answer = await peers.ask(
            "feed", host, port, ControllerFeedRequest(broker_id=7), timeout_s=120
        )
        assert answer.error_code == 0

    asked(broker, test)


def test_only_brokers_see_inter_broker_apis(broker: InProcessBroker) -> None:
    async def test(peers: Peers, host: str, port: int) -> None:
        answer = await peers.ask(
            "feed", host, port, ControllerFeedRequest(broker_id=7), timeout_s=120
        )
        assert answer.error_code == 0 and answer.begins_snapshot

    asked(broker, test)
    request = ApiVersionsRequest(client_software_name="client", client_software_version="1")
    with RawClient(broker.bootstrap) as client:
        keys = {row.api_key for row in client.call(request, 3).api_keys}
    assert FETCH in keys and FEED not in keys


def test_the_newest_common_version_is_used(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(monkeypatch, MARKERS, 1)

    async def test(peers: Peers, host: str, port: int) -> None:
        request = WriteTxnMarkersRequest(markers=[])
        assert (await peers.ask("markers", host, port, request, timeout_s=120)).markers == []
        (peer,) = peers._open.values()
        api = next(api for api in APIS if api.key == MARKERS)
        assert peer._version(api, None) == 1 < api.newest
        with pytest.raises(NoCommonVersion):
            peer._version(api, 2)

    asked(broker, test)


@pytest.mark.parametrize("newest", [12, None])
def test_releases_without_a_common_version_are_reported(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, newest: int | None
) -> None:
    """Old versions of Fetch have neither topic ids nor broker epochs."""
    serving(monkeypatch, FETCH, newest)

    async def test(peers: Peers, host: str, port: int) -> None:
        with pytest.raises(NoCommonVersion, match="upgrade the older broker"):
            await peers.ask("fetch", host, port, FetchRequest(), timeout_s=120)

    asked(broker, test)


def test_dropping_a_connection_fails_its_requests_at_once(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(peers: Peers, host: str, port: int) -> None:
        def poll() -> ControllerFeedRequest:
            return ControllerFeedRequest(
                broker_id=7, controller_epoch=epoch, position=position, max_wait_ms=5000
            )

        epoch = position = -1
        answer = await peers.ask("feed", host, port, poll(), timeout_s=120)
        epoch, position = answer.controller_epoch, answer.position
        waiting = asyncio.ensure_future(peers.ask("feed", host, port, poll(), timeout_s=600))
        kept = asyncio.ensure_future(
            peers.ask("fetch 1", host, port, FetchRequest(), timeout_s=600)
        )
        await asyncio.sleep(0.1)
        peers.drop(("feed",), keep=(host, port))
        await asyncio.sleep(0)
        assert not waiting.done(), "the one that is kept"
        peers.drop(("feed",), keep=(host, port + 1))
        with pytest.raises(PeerGone):
            await waiting
        await kept
        epoch = -1
        assert (await peers.ask("feed", host, port, poll(), timeout_s=120)).begins_snapshot

    asked(broker, test)


def test_a_broker_that_never_responds_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.cluster.peers._CONNECT_TIMEOUT_S", 0.2)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            peers = Peers(SocketNetwork(), "broker-7")
            host, port = silent.getsockname()
            with pytest.raises(PeerGone):
                await peers.ask("feed", host, port, ControllerFeedRequest(), timeout_s=600)
            assert not peers._open

    asyncio.run(run())
