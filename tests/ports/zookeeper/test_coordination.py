"""What real servers and clients do to each other: killed, paused, led by another, talking nonsense,
never there.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.local.process import child_environment
from millstream.local.zookeeper import (
    LocalZooKeeper,
    connect_string,
    free_ports,
    local_ensemble,
    members,
    server_mode,
)
from millstream.ports.coordination import (
    ConnectionLost,
    CoordinationError,
    Create,
    Put,
    SessionState,
)
from millstream.ports.zookeeper.coordination import ZooKeeperCoordination, parse_connect
from ports.conftest import TICK_MS
from support.ports.coordination_worlds import until
from support.tcp_proxy import TcpProxy

LONG_SESSION_MS = 20_000
SHORT_SESSION_MS = 1_000


@pytest.fixture
def own_server(zookeeper_installed: None, tmp_path: Path) -> Iterator[LocalZooKeeper]:
    server = LocalZooKeeper(tmp_path / "zookeeper", tick_ms=TICK_MS)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def ensemble(zookeeper_installed: None, tmp_path: Path) -> Iterator[list[LocalZooKeeper]]:
    servers = local_ensemble(tmp_path, members(free_ports(9)), tick_ms=TICK_MS)
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            server.kill()


class Client(ZooKeeperCoordination):
    """One that remembers what it was told, with a node of its own."""

    def __init__(self, connect: str, session_timeout_ms: int) -> None:
        super().__init__(connect, session_timeout_ms=session_timeout_ms)
        self.seen: list[SessionState] = []

    async def __aenter__(self) -> Client:
        await self.open(timeout_ms=20_000)
        self.on_session(self.seen.append)
        await self.multi([Create("/me", b"", ephemeral=True), Put("/stays", b"1")])
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def back(self) -> bool:
        return self.seen[-1:] == [SessionState.CONNECTED]


class Ticks:
    """Counts how often the loop comes round: a thread that blocks it stops the count."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            self.count += 1

    def stop(self) -> None:
        self._task.cancel()


def test_a_killed_server_that_comes_back_finds_the_session_and_the_data(
    own_server: LocalZooKeeper,
) -> None:
    async def story() -> None:
        async with Client(own_server.address, LONG_SESSION_MS) as client:
            before = await client.load()
            own_server.kill()
            await until(lambda: client.seen == [SessionState.SUSPENDED], "the loss to be told")
            with pytest.raises(ConnectionLost):
                await client.multi([Put("/a", b"1")])
            await asyncio.to_thread(own_server.start)
            await until(client.back, "the connection to be back")
            assert client.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
            assert await client.load() == before

    asyncio.run(story())


def test_a_paused_server_stops_neither_the_loop_nor_the_client_for_ever(
    own_server: LocalZooKeeper,
) -> None:
    """Paused for longer than the session lasts. Whether the server then ends it or hears of the
    client first is its own affair; what the client was told must be true.
    """

    async def story() -> None:
        async with Client(own_server.address, SHORT_SESSION_MS) as client:
            ticks = Ticks()
            own_server.pause()
            try:
                reads = [asyncio.ensure_future(client.get(f"/{n}")) for n in range(2000)]
                ends = await asyncio.gather(*reads, return_exceptions=True)
                assert all(isinstance(end, ConnectionLost) for end in ends)
                counted = ticks.count
                await asyncio.sleep(1.5 * SHORT_SESSION_MS / 1000)
                assert ticks.count > counted > 0
                assert client.session is SessionState.SUSPENDED
            finally:
                own_server.resume()
            ticks.stop()
            await until(client.back, "the connection to be back")
            mine = await client.get("/me")
            assert (mine is None) == (SessionState.EXPIRED in client.seen)
            assert await client.get("/stays") is not None
            await client.multi([Put("/after", b"1")])

    asyncio.run(story())


def test_the_death_of_the_leader_costs_an_ensemble_neither_session_nor_data(
    ensemble: list[LocalZooKeeper],
) -> None:
    async def story() -> None:
        async with Client(connect_string(ensemble) + "/cluster", LONG_SESSION_MS) as client:
            await client.multi([Put("/acknowledged", b"1")])
            leader = next(one for one in ensemble if server_mode(one.host, one.port) == "leader")
            calls: list[int] = []
            client.watch("/x", lambda: calls.append(1))
            await until(lambda: calls, "the watch to be set")
            leader.kill()
            await _write_until_acknowledged(client, "/afterwards")
            assert SessionState.EXPIRED not in client.seen
            found = await client.load()
            assert set(found) == {"/me", "/stays", "/acknowledged", "/afterwards"}
            calls.clear()
            await client.multi([Put("/x", b"1")])
            await until(lambda: calls, "the watch to tell, whichever server has it now")

    asyncio.run(story())


async def _write_until_acknowledged(client: Client, path: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            await client.multi([Put(path, b"1")])
            return
        except ConnectionLost:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


def test_without_a_quorum_nothing_is_written_and_all_goes_on_when_it_is_back(
    ensemble: list[LocalZooKeeper],
) -> None:
    async def story() -> None:
        async with Client(connect_string(ensemble), LONG_SESSION_MS) as client:
            for server in ensemble[:2]:
                server.kill()
            await until(lambda: client.session is SessionState.SUSPENDED, "the loss to be told")
            with pytest.raises(ConnectionLost):
                await client.multi([Put("/a", b"1")])
            await asyncio.to_thread(ensemble[0].start)
            await until(client.back, "a quorum")
            await client.multi([Put("/a", b"2")])
            assert set(await client.load()) == {"/me", "/stays", "/a"}

    asyncio.run(story())


_REGISTER = """\
import asyncio, sys
from millstream.ports.coordination import Create
from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

async def main():
    client = await ZooKeeperCoordination(sys.argv[1], session_timeout_ms=int(sys.argv[2])).open()
    await client.multi([Create("/ids/7", b"", ephemeral=True)])
    print("there", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def _register(address: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", _REGISTER, address, str(SHORT_SESSION_MS)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, env=child_environment())


def test_the_nodes_of_a_client_that_is_killed_go_when_its_session_does(
    zookeeper: LocalZooKeeper,
) -> None:
    async def story() -> None:
        address = f"{zookeeper.address}/killed"
        async with Client(address, SHORT_SESSION_MS) as client:
            process = _register(address)
            assert process.stdout is not None
            try:
                assert await asyncio.to_thread(process.stdout.readline) == b"there\n"
                assert set(await client.children("/ids")) == {"7"}
                told: list[int] = []
                client.watch("/ids", lambda: told.append(1))
                await until(lambda: told, "the watch to be set")
                told.clear()
                process.send_signal(signal.SIGKILL)
                await until(lambda: told, "the end of the other to be told")
                assert await client.children("/ids") == {}
            finally:
                process.kill()
                process.wait()
                process.stdout.close()

    asyncio.run(story())


class SilentProxy(TcpProxy):
    """Accepts one connection after ``leave`` and never answers it; later connections pass."""

    silent = 0

    def _connect(self, client: socket.socket) -> None:
        if self.away:
            self.silent += 1
            self.away = False
            self._held = client
        else:
            super()._connect(client)


def test_a_server_that_never_answers_a_handshake_does_not_cost_the_session(
    zookeeper: LocalZooKeeper,
) -> None:
    async def story() -> None:
        with SilentProxy((zookeeper.host, zookeeper.port)) as proxy:
            async with Client(f"{proxy.bootstrap}/silent", 12_000) as client:
                proxy.leave()
                await until(client.back, "the connection to be back")
                assert proxy.silent == 1
                assert client.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
                assert await client.get("/me") is not None

    asyncio.run(story())


class Babbler(TcpProxy):
    """Puts an answer to a question that nobody asked into the stream, once."""

    babble = False

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        while data := server.recv(1 << 16):
            if self.babble:
                self.babble = False
                client.sendall((16).to_bytes(4, "big") + b"\x7f" * 16)
            client.sendall(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_inside_the_client_library_is_followed_by_a_new_session(
    zookeeper: LocalZooKeeper,
) -> None:
    async def story() -> None:
        with Babbler((zookeeper.host, zookeeper.port)) as proxy:
            async with Client(f"{proxy.bootstrap}/babble", SHORT_SESSION_MS) as client:
                proxy.babble = True
                with pytest.raises(ConnectionLost):
                    await client.multi([Put("/a", b"1")])
                await until(client.back, "a new session")
                assert SessionState.EXPIRED in client.seen
                await client.multi([Put("/b", b"1")])
                assert await client.get("/b") is not None

    asyncio.run(story())


def test_where_no_server_answers_that_is_told_in_time() -> None:
    async def story() -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(
            ConnectionLost, match=rf"no ZooKeeper answers at {address} within 0\.5 s"
        ):
            await ZooKeeperCoordination(address).open(timeout_ms=500)

    asyncio.run(story())


def test_one_silent_host_among_several_is_passed_over(zookeeper: LocalZooKeeper) -> None:
    """It accepts connections and says nothing."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hosts = f"127.0.0.1:{silent.getsockname()[1]},{zookeeper.address}"
            for _ in range(4):  # the order is chance
                async with Client(f"{hosts}/silent", SHORT_SESSION_MS) as client:
                    assert await client.get("/stays") is not None

    asyncio.run(story())


def test_without_kazoo_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.delitem(sys.modules, "millstream.ports.zookeeper.session", raising=False)

    async def story() -> None:
        with pytest.raises(CoordinationError, match=r'pip install "millstream\[cluster\]"'):
            await ZooKeeperCoordination("localhost").open()

    asyncio.run(story())


@pytest.mark.parametrize(
    "connect, parsed",
    [
        ("localhost", ("localhost", "")),
        ("a:2181, b:2182,", ("a:2181,b:2182", "")),
        ("a:2181,b:2182/kafka", ("a:2181,b:2182", "/kafka")),
        ("a/kafka/one/", ("a", "/kafka/one")),
        ("[::1]:2181/", ("[::1]:2181", "")),
    ],
)
def test_addresses_have_hosts_and_perhaps_a_chroot(connect: str, parsed: tuple[str, str]) -> None:
    assert parse_connect(connect) == parsed


@pytest.mark.parametrize(
    "connect", ["", "/kafka", ":2181", "a:1,:2", "a:b", "a:0", "a:99999", "a b", "a:2181/../x"]
)
def test_addresses_that_are_none_are_refused(connect: str) -> None:
    with pytest.raises(ValueError):
        parse_connect(connect)


def test_nothing_is_left_behind_when_a_client_is_closed(zookeeper: LocalZooKeeper) -> None:
    import threading

    def kazoo_threads() -> int:
        return sum(
            1
            for thread in threading.enumerate()
            if "_thread_worker" in thread.name or "zk_loop" in thread.name
        )

    async def story() -> None:
        async with Client(f"{zookeeper.address}/closing", SHORT_SESSION_MS):
            assert kazoo_threads() > 0

    before = kazoo_threads()
    asyncio.run(story())
    deadline = time.monotonic() + 20
    while kazoo_threads() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
