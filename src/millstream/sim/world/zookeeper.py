"""A simulated ZooKeeper behind the `Coordination` port: one tree, sessions, and lost responses.

Requests of a session arrive in order. If a connection breaks, requests in flight fail with
ConnectionLost, whether they were applied or not. Undelivered requests are never executed, because
the session belongs to the next connection. After a loss, a connection delivers nothing more, as
with TCP, until the client closes it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from millstream.ports.coordination import (
    Cancel,
    Check,
    ConnectionLost,
    CoordinationError,
    Create,
    Node,
    Put,
    SessionExpired,
    SessionState,
    Write,
)
from millstream.ports.coordination_tree import Tree
from millstream.sim.world.machines import Process, World
from millstream.sim.world.network import SimNetwork

HOST = "zookeeper"
_RECONNECT_S = 0.2


class _Session:
    """The ensemble's record of a client."""

    def __init__(self, number: int, timeout_s: float, heard_at: float) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.heard_at = heard_at
        self.connection = 0
        self.client: SimCoordination | None = None
        self.client_name = ""


class SimZooKeeper:
    """The ensemble. While it is paused it has no quorum: no responses, and no session expires."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = Tree()
        self.sessions: dict[int, _Session] = {}
        self._numbers = itertools.count(1)
        self._paused_until = 0.0
        # None: deleted, with everything below
        self.on_write: list[Callable[[str, bytes | None], None]] = []

    @property
    def network(self) -> SimNetwork:
        return self.world.network

    @property
    def now(self) -> float:
        return self.world.scheduler.now

    @property
    def paused(self) -> bool:
        return self.now < self._paused_until

    # -- faults

    def pause(self, seconds: float) -> None:
        self.world.log(HOST, f"has no quorum for {seconds:.1f} s")
        self.world.activity["zookeeper pauses"] += 1
        self._paused_until = max(self._paused_until, self.now + seconds)
        self.world.scheduler.at(self._paused_until, self._resumed)

    def _resumed(self) -> None:
        """Restart the timeout of every session, as a new leader does."""
        if not self.paused:
            for session in self.sessions.values():
                session.heard_at = self.now

    def expire(self, number: int) -> None:
        """Expire a session now."""
        session = self.sessions.pop(number, None)
        if session is not None:
            self.world.log(HOST, f"session {number} expires")
            self.world.activity["sessions expired"] += 1
            self._touched(self.tree.remove_all(self.tree.owned_by(number)))

    # -- sessions

    def open(self, client: SimCoordination, timeout_s: float) -> _Session:
        session = _Session(next(self._numbers), timeout_s, self.now)
        session.client, session.client_name = client, client.name
        self.sessions[session.number] = session
        self._expire_when_due(session)
        return session

    def close(self, session: _Session) -> None:
        if self.sessions.pop(session.number, None) is not None:
            self._touched(self.tree.remove_all(self.tree.owned_by(session.number)))

    def _expire_when_due(self, session: _Session) -> None:
        if self.sessions.get(session.number) is not session:
            return
        due = session.heard_at + session.timeout_s
        if self.now >= due and not self.paused:
            self.expire(session.number)
        else:
            self.world.scheduler.at(max(due, self.now + 0.05), self._expire_when_due, session)

    # -- requests

    def execute(self, session: _Session, connection: int, work: Callable[[Tree], Any]) -> Any:
        """Return the result of a request, or its error.

        Return `_DROPPED` if its connection is not the current one of the session.
        """
        if session.connection != connection:
            return _DROPPED
        if self.sessions.get(session.number) is not session:
            return SessionExpired(str(session.number))
        session.heard_at = self.now
        try:
            return work(self.tree)
        except CoordinationError as error:
            return error

    def write(self, session: _Session, writes: Sequence[Write]) -> None:
        self.world.activity["zookeeper writes"] += 1
        touched = self.tree.multi(writes, session.number)
        if self.world.trace:
            for write in writes:
                data = getattr(write, "data", b"").decode("utf-8", "backslashreplace")
                self.world.log(
                    HOST, f"{session.client_name} {type(write).__name__} {write.path} {data}"
                )
        for write in writes:
            if not isinstance(write, Check):
                for listener in self.on_write:
                    listener(write.path, write.data if isinstance(write, Create | Put) else None)
        self._touched(touched)

    def _touched(self, paths: set[str]) -> None:
        for session in list(self.sessions.values()):
            if session.client is not None:
                session.client.changed(sorted(paths), session.connection)


_DROPPED = object()


class SimCoordination:
    """Implements `Coordination` for one process."""

    def __init__(
        self, zookeeper: SimZooKeeper, process: Process, *, session_timeout_ms: int = 6000
    ) -> None:
        self._zookeeper = zookeeper
        self._process = process
        self._loop = process.loop
        self._host = process.machine.name
        self.name = process.loop.name
        self._dice = random.Random(process.entropy.dice.random())
        self._timeout_s = session_timeout_ms / 1000
        self._session: _Session | None = None
        self._state = SessionState.SUSPENDED
        self._connection = 0
        self._stuck = -1  # the connection on which something was lost
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._watches: dict[str, list[Callable[[], None]]] = {}
        self._listeners: list[Callable[[SessionState], None]] = []
        self._last_arrival = 0.0
        self._told: set[str] = set()
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._closed = False

    # -- the session

    async def open(self) -> SimCoordination:
        """Connect, however long that takes."""
        await self._connect()
        self._keep_alive_task = self._loop.create_task(self._keep_alive(), name="zookeeper session")
        return self

    @property
    def session(self) -> SessionState:
        return self._state

    @property
    def session_number(self) -> int:
        return self._session.number if self._session is not None else 0

    def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _set_state(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            for listener in list(self._listeners):
                listener(state)

    def _reachable(self) -> bool:
        network = self._zookeeper.network
        return (
            not self._zookeeper.paused
            and not network.is_cut(self._host, HOST)
            and not network.is_cut(HOST, self._host)
        )

    def _delay(self) -> float:
        return self._zookeeper.network.delay(self._host, HOST)

    async def _connect(self) -> None:
        """Connect again, in the same session if it still exists."""
        while True:
            await asyncio.sleep(2 * self._delay())
            if self._reachable():
                break
            await asyncio.sleep(_RECONNECT_S * (0.5 + self._dice.random()))
        if self._session is not None and self._session.number not in self._zookeeper.sessions:
            self._session = None
            self._set_state(SessionState.EXPIRED)
            await asyncio.sleep(self._delay())
        if self._session is None:
            self._session = self._zookeeper.open(self, self._timeout_s)
        self._connection += 1
        self._session.connection = self._connection
        self._session.heard_at = self._zookeeper.now
        self._set_state(SessionState.CONNECTED)
        for callbacks in list(self._watches.values()):
            for callback in list(callbacks):
                self._loop.call_soon(callback)

    async def _keep_alive(self) -> None:
        """Ping. Without a response in two thirds of the timeout, reconnect."""
        while not self._closed:
            await asyncio.sleep(self._timeout_s / 3)
            if self._closed:
                return
            try:
                async with asyncio.timeout(self._timeout_s / 3):
                    await self._request(lambda tree: None)
                continue
            except (TimeoutError, CoordinationError):
                pass
            await self._reconnect()

    async def _reconnect(self) -> None:
        self.lose_connection()
        await self._connect()

    def lose_connection(self) -> None:
        """Break the connection: requests in flight are lost. The keep-alive task reconnects."""
        if self._session is not None:
            self._session.connection = -1
        self._connection += 1
        self._set_state(SessionState.SUSPENDED)
        for future in list(self._pending):
            if not future.done():
                future.set_exception(ConnectionLost("the connection broke"))
        self._pending.clear()

    async def break_connection(self) -> None:
        """Break the connection and reconnect at once, for tests and faults."""
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()
        self.lose_connection()
        self._keep_alive_task = self._loop.create_task(self._resume(), name="zookeeper session")

    async def _resume(self) -> None:
        await self._connect()
        await self._keep_alive()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()
        if self._session is not None and self._reachable():
            self._zookeeper.close(self._session)
        self._session = None
        self._state = SessionState.SUSPENDED

    # -- requests

    async def _request(self, work: Callable[[Tree], Any]) -> Any:
        if self._closed or self._state is SessionState.SUSPENDED or self._session is None:
            raise ConnectionLost("not connected")
        if self._state is SessionState.EXPIRED:
            raise SessionExpired("expired")
        response: asyncio.Future[Any] = self._loop.create_future()
        self._pending[response] = None
        arrival = max(self._loop.time() + self._delay(), self._last_arrival + 1e-7)
        self._last_arrival = arrival
        self._zookeeper.world.scheduler.at(
            arrival, self._arrived, self._session, self._connection, work, response
        )
        try:
            return await response
        finally:
            self._pending.pop(response, None)

    def _arrived(
        self,
        session: _Session,
        connection: int,
        work: Callable[[Tree], Any],
        response: asyncio.Future[Any],
    ) -> None:
        """Execute a request at the ensemble. It, or its response, may be lost on the way."""
        zookeeper = self._zookeeper
        if connection == self._stuck or self._loop.dead:
            return
        if zookeeper.paused or zookeeper.network.is_cut(self._host, HOST):
            self._stuck = connection
            return
        result = zookeeper.execute(session, connection, work)
        if result is _DROPPED:
            return
        if zookeeper.network.is_cut(HOST, self._host):
            self._stuck = connection
            return
        back = zookeeper.now + zookeeper.network.delay(HOST, self._host)
        zookeeper.world.scheduler.at(
            back, self._loop.call_soon, self._complete, connection, response, result
        )

    def _complete(self, connection: int, response: asyncio.Future[Any], result: Any) -> None:
        if response.done() or connection != self._connection:
            return
        if isinstance(result, CoordinationError):
            response.set_exception(result)
        else:
            response.set_result(result)

    async def load(self) -> dict[str, Node]:
        nodes: dict[str, Node] = await self._request(lambda tree: tree.load())
        return nodes

    async def get(self, path: str) -> Node | None:
        node: Node | None = await self._request(lambda tree: tree.get(path))
        return node

    async def children(self, path: str) -> dict[str, Node]:
        nodes: dict[str, Node] = await self._request(lambda tree: tree.children(path))
        return nodes

    async def multi(self, writes: Sequence[Write]) -> None:
        session, all_writes = self._session, list(writes)
        assert session is not None or self._state is not SessionState.CONNECTED
        await self._request(lambda tree: self._zookeeper.write(session, all_writes))  # type: ignore[arg-type]

    # -- watches

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(callback)

        def cancel() -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        return cancel

    def changed(self, paths: list[str], connection: int) -> None:
        """Notify a connected client of changes."""
        mine = [path for path in paths if self._watches.get(path or "/") or self._watches.get(path)]
        if not mine or self._loop.dead or connection == self._stuck:
            return
        if self._zookeeper.network.is_cut(HOST, self._host):
            self._stuck = connection
            return
        at = self._zookeeper.now + self._zookeeper.network.delay(HOST, self._host)
        self._zookeeper.world.scheduler.at(at, self._loop.call_soon, self._notify, mine, connection)

    def _notify(self, paths: list[str], connection: int) -> None:
        if connection != self._connection or self._closed:
            return
        for path in paths:
            for callback in list(self._watches.get(path or "/", ())):
                callback()
