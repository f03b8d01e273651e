"""The worlds in which the contract of coordination is tested: the embedded store, the simulated
ZooKeeper, and a real one.

A world makes clients of one and the same tree, runs a story, and does to a client what happens in
networks. ``run`` belongs to the world because a simulated one has its own clock. Worlds with a
single client and without sessions say so, and the stories that need more are skipped there.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from millstream.local.zookeeper import LocalZooKeeper
from millstream.ports.coordination import Coordination, Create, SessionState
from millstream.ports.embedded_coordination import EmbeddedCoordination
from millstream.ports.files import RealFiles
from millstream.ports.zookeeper.coordination import ZooKeeperCoordination
from millstream.sim.world.isolation import isolated
from millstream.sim.world.machines import World as SimWorld
from millstream.sim.world.zookeeper import HOST, SimCoordination, SimZooKeeper
from support.tcp_proxy import TcpProxy

PATIENCE_S = 120.0
# Long enough that a busy machine does not end a session by itself. Only ``expire`` waits for its
# end.
SESSION_MS = 6000


class World(Protocol):
    """What a story can do."""

    several: bool  # clients can be several, with sessions that end

    def run(self, story: Callable[[Any], Awaitable[None]]) -> None:
        """Runs ``story(world)`` to its end, and closes the clients that it leaves open."""

    async def client(self) -> Coordination:
        """One more client of the same tree."""

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Returns when the condition (a function or a coroutine function) holds; fails when it does
        not in due time.
        """

    async def break_connection(self, client: Coordination) -> None:
        """The connection breaks and may be taken up again at once."""

    async def leave(self, client: Coordination) -> None:
        """The network between this client and the servers is gone; returns when the client has
        noticed.
        """

    async def back(self, client: Coordination) -> None:
        """It is there again."""

    async def expire(self, client: Coordination) -> None:
        """Away until the servers have ended the session, then back."""

    async def lose_answer(
        self, client: Coordination, work: Awaitable[None], applied: Callable[[], Awaitable[bool]]
    ) -> BaseException:
        """Does the work so that the servers carry it out and the answer is lost; what the work
        raised.
        """


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s in vain: {what}"
        await asyncio.sleep(0.01)


class EmbeddedWorld:
    several = False

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "millstream.store")
        self._client: EmbeddedCoordination | None = None

    def run(self, story: Callable[[Any], Awaitable[None]]) -> None:
        async def whole() -> None:
            await story(self)
            if self._client is not None:
                await self._client.close()

        asyncio.run(whole())

    async def client(self) -> Coordination:
        assert self._client is None, "this store has one client"
        self._client = EmbeddedCoordination(RealFiles(), self._path)
        await self._client.load()
        return self._client

    until = staticmethod(until)


class ZooKeeperWorld:
    """A chroot of its own on a server that others may share; each client comes through a proxy of
    its own.
    """

    several = True

    def __init__(self, server: LocalZooKeeper) -> None:
        self._server = server
        self._root = f"/test-{uuid.uuid4().hex[:12]}/below"
        self._proxies: dict[int, TcpProxy] = {}
        self._clients: list[ZooKeeperCoordination] = []

    def run(self, story: Callable[[Any], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                await story(self)
            finally:
                for proxy in self._proxies.values():
                    proxy.back()
                    proxy.resume()
                await asyncio.gather(*(client.close() for client in self._clients))
                for proxy in self._proxies.values():
                    proxy.close()

        asyncio.run(whole())

    async def client(self) -> ZooKeeperCoordination:
        proxy = TcpProxy((self._server.host, self._server.port))
        client = ZooKeeperCoordination(proxy.bootstrap + self._root, session_timeout_ms=SESSION_MS)
        self._proxies[id(client)] = proxy
        self._clients.append(client)
        return await client.open(timeout_ms=20_000)

    until = staticmethod(until)

    async def break_connection(self, client: Coordination) -> None:
        self._proxies[id(client)].cut()

    async def leave(self, client: Coordination) -> None:
        told = asyncio.Event()
        cancel = client.on_session(lambda state: told.set())
        self._proxies[id(client)].leave()
        await told.wait()
        cancel()

    async def back(self, client: Coordination) -> None:
        self._proxies[id(client)].back()

    async def expire(self, client: Coordination) -> None:
        """With a marker of its own: when that is gone, the session is over."""
        marker = f"/marker-{uuid.uuid4().hex[:8]}"
        await client.multi([Create(marker, b"", ephemeral=True)])
        onlooker = await self.client()
        await self.leave(client)

        async def gone() -> bool:
            return await onlooker.get(marker) is None

        await self.until(gone, "the session to expire")
        await onlooker.close()
        await self.back(client)

    async def lose_answer(
        self, client: Coordination, work: Awaitable[None], applied: Callable[[], Awaitable[bool]]
    ) -> BaseException:
        proxy = self._proxies[id(client)]
        proxy.hold()
        working = asyncio.ensure_future(work)
        await self.until(applied, "the servers to have done it")
        proxy.cut()
        proxy.resume()
        (error,) = await asyncio.gather(working, return_exceptions=True)
        assert isinstance(error, BaseException), "the work was answered"
        return error


class SimulatedWorld:
    """The simulated ZooKeeper, in virtual time; every client is a process of its own in name, all
    on the loop of the story.
    """

    several = True

    def __init__(self) -> None:
        self._world = SimWorld(1)
        self._zookeeper = SimZooKeeper(self._world)
        self._main = self._world.process("story")
        self._clients: list[SimCoordination] = []

    def run(self, story: Callable[[Any], Awaitable[None]]) -> None:
        async def whole() -> None:
            await story(self)
            for client in self._clients:
                await client.close()

        scheduler = self._world.scheduler
        with isolated(scheduler, 1):
            task = self._main.start(whole())
            scheduler.run_until(task.done, limit_s=600)
            task.result()
            assert not scheduler.errors, scheduler.errors

    async def client(self) -> SimCoordination:
        process = self._world.process(f"client-{len(self._clients)}")
        process.loop = self._main.loop
        client = SimCoordination(self._zookeeper, process, session_timeout_ms=SESSION_MS)
        self._clients.append(client)
        return await client.open()

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        await until(condition, what)

    async def break_connection(self, client: SimCoordination) -> None:
        await client.break_connection()

    async def leave(self, client: SimCoordination) -> None:
        self._cut(client)
        await self.until(
            lambda: client.session is not SessionState.CONNECTED, "the client to notice"
        )

    def _cut(self, client: SimCoordination) -> None:
        self._world.network.cut(client._host, HOST)
        self._world.network.cut(HOST, client._host)

    async def back(self, client: SimCoordination) -> None:
        self._world.network.heal()

    async def expire(self, client: SimCoordination) -> None:
        await self.leave(client)
        number = client.session_number
        await self.until(lambda: number not in self._zookeeper.sessions, "the session to expire")
        await self.back(client)

    async def lose_answer(
        self, client: SimCoordination, work: Awaitable[None], applied: Callable[[], Awaitable[bool]]
    ) -> BaseException:
        self._world.network.cut(HOST, client._host)
        working = asyncio.ensure_future(work)
        await self.until(applied, "the servers to have done it")
        (error,) = await asyncio.gather(working, return_exceptions=True)
        self._world.network.heal()
        assert isinstance(error, BaseException), "the work was answered"
        return error
