"""A simulated ZooKeeper behind the `Coordination` port: one tree, sessions with timeouts, and a network that loses answers.

Requests of a session arrive in order. A connection that breaks fails what is under way with ConnectionLost, applied or
not; what it had not delivered by then is never carried out, because the session belongs to the next connection. A
connection on which anything got lost carries nothing more, as TCP has it, until the client gives it up.
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
    """What the ensemble knows of a client."""

    def __init__(self, number: int, timeout_s: float, heard_at: float) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.heard_at = heard_at
        self.connection = 0
        self.client: SimCoordination | None = None
        self.client_name = ""


class SimZooKeeper:
    """The ensemble, as one. ``pause`` is the loss of its quorum: nothing is answered and no session ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = Tree()
        self.sessions: dict[int, _Session] = {}
        self._numbers = itertools.count(1)
        self._paused_until = 0.0
        self.on_write: list[Callable[[str, bytes | None], None]] = []  # None: deleted, with all below

    @property
    def network(self) -> SimNetwork:
        return self.world.network

    @property
    def now(self) -> float:
        return self.world.scheduler.now

    @property
    def paused(self) -> bool:
        return self.now < self._paused_until

    # ---- what a nemesis does --------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        self.world.tell(HOST, f"has no quorum for {seconds:.1f} s")
        self.world.activity["zookeeper pauses"] += 1
        self._paused_until = max(self._paused_until, self.now + seconds)
        self.world.scheduler.at(self._paused_until, self._resumed)

    def _resumed(self) -> None:
        """A new leader gives every session its whole time again."""
        if not self.paused:
            for session in self.sessions.values():
                session.heard_at = self.now

    def expire(self, number: int) -> None:
        """Ends a session at once."""
        session = self.sessions.pop(number, None)
        if session is not None:
            self.world.tell(HOST, f"session {number} expires")
            self.world.activity["sessions expired"] += 1
            self._touched(self.tree.remove_all(self.tree.owned_by(number)))

    # ---- sessions -------------------------------------------------------------------------------------------

    def open(self, client: SimCoordination, timeout_s: float) -> _Session:
        session = _Session(next(self._numbers), timeout_s, self.now)
        session.client, session.client_name = client, client.name
        self.sessions[session.number] = session
        self._watch_over(session)
        return session

    def close(self, session: _Session) -> None:
        if self.sessions.pop(session.number, None) is not None:
            self._touched(self.tree.remove_all(self.tree.owned_by(session.number)))

    def _watch_over(self, session: _Session) -> None:
        if self.sessions.get(session.number) is not session:
            return
        due = session.heard_at + session.timeout_s
        if self.now >= due and not self.paused:
            self.expire(session.number)
        else:
            self.world.scheduler.at(max(due, self.now + 0.05), self._watch_over, session)

    # ---- requests -------------------------------------------------------------------------------------------

    def carry_out(self, session: _Session, connection: int, work: Callable[[Tree], Any]) -> Any:
        """The result of a request, or the error; None-like `_Dropped` where it came over a connection that is history."""
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
                self.world.tell(HOST, f"{session.client_name} {type(write).__name__} {write.path} {data}")
        for write in writes:
            if not isinstance(write, Check):
                for told in self.on_write:
                    told(write.path, write.data if isinstance(write, Create | Put) else None)
        self._touched(touched)

    def _touched(self, paths: set[str]) -> None:
        for session in list(self.sessions.values()):
            if session.client is not None:
                session.client.changed(sorted(paths), session.connection)


_DROPPED = object()


class SimCoordination:
    """Implements `Coordination` for one process."""

    def __init__(self, zookeeper: SimZooKeeper, process: Process, *, session_timeout_ms: int = 6000) -> None:
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
        self._stuck = -1  # the connection on which something got lost
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._watches: dict[str, list[Callable[[], None]]] = {}
        self._listeners: list[Callable[[SessionState], None]] = []
        self._last_arrival = 0.0
        self._told: set[str] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    # ---- the session ----------------------------------------------------------------------------------------

    async def open(self) -> SimCoordination:
        """Connects, however long that takes."""
        await self._connect()
        self._keeper = self._loop.create_task(self._keep(), name="zookeeper session")
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

    def _become(self, state: SessionState) -> None:
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
        """One connection more, in the same session if that is still there."""
        while True:
            await asyncio.sleep(2 * self._delay())
            if self._reachable():
                break
            await asyncio.sleep(_RECONNECT_S * (0.5 + self._dice.random()))
        if self._session is not None and self._session.number not in self._zookeeper.sessions:
            self._session = None
            self._become(SessionState.EXPIRED)
            await asyncio.sleep(self._delay())
        if self._session is None:
            self._session = self._zookeeper.open(self, self._timeout_s)
        self._connection += 1
        self._session.connection = self._connection
        self._session.heard_at = self._zookeeper.now
        self._become(SessionState.CONNECTED)
        for callbacks in list(self._watches.values()):
            for callback in list(callbacks):
                self._loop.call_soon(callback)

    async def _keep(self) -> None:
        """Pings; without an answer in two thirds of the timeout the connection is given up."""
        while not self._closed:
            await asyncio.sleep(self._timeout_s / 3)
            if self._closed:
                return
            try:
                async with asyncio.timeout(self._timeout_s / 3):
                    await self._ask(lambda tree: None)
                continue
            except (TimeoutError, CoordinationError):
                pass
            await self._reconnect()

    async def _reconnect(self) -> None:
        self.lose_connection()
        await self._connect()

    def lose_connection(self) -> None:
        """It breaks: what is under way is lost. The keeper takes it up again."""
        if self._session is not None:
            self._session.connection = -1
        self._connection += 1
        self._become(SessionState.SUSPENDED)
        for future in list(self._pending):
            if not future.done():
                future.set_exception(ConnectionLost("the connection broke"))
        self._pending.clear()

    async def break_connection(self) -> None:
        """For tests and nemeses: breaks, and is taken up again at once."""
        if self._keeper is not None:
            self._keeper.cancel()
        self.lose_connection()
        self._keeper = self._loop.create_task(self._resume(), name="zookeeper session")

    async def _resume(self) -> None:
        await self._connect()
        await self._keep()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        if self._session is not None and self._reachable():
            self._zookeeper.close(self._session)
        self._session = None
        self._state = SessionState.SUSPENDED

    # ---- requests -------------------------------------------------------------------------------------------

    async def _ask(self, work: Callable[[Tree], Any]) -> Any:
        if self._closed or self._state is SessionState.SUSPENDED or self._session is None:
            raise ConnectionLost("not connected")
        if self._state is SessionState.EXPIRED:
            raise SessionExpired("expired")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._pending[answer] = None
        arrival = max(self._loop.time() + self._delay(), self._last_arrival + 1e-7)
        self._last_arrival = arrival
        self._zookeeper.world.scheduler.at(
            arrival, self._arrived, self._session, self._connection, work, answer
        )
        try:
            return await answer
        finally:
            self._pending.pop(answer, None)

    def _arrived(
        self, session: _Session, connection: int, work: Callable[[Tree], Any], answer: asyncio.Future[Any]
    ) -> None:
        """At the ensemble. A request that is cut off on its way is as lost as an answer is."""
        zookeeper = self._zookeeper
        if connection == self._stuck or self._loop.dead:
            return
        if zookeeper.paused or zookeeper.network.is_cut(self._host, HOST):
            self._stuck = connection
            return
        result = zookeeper.carry_out(session, connection, work)
        if result is _DROPPED:
            return
        if zookeeper.network.is_cut(HOST, self._host):
            self._stuck = connection
            return
        back = zookeeper.now + zookeeper.network.delay(HOST, self._host)
        zookeeper.world.scheduler.at(back, self._loop.call_soon, self._answered, connection, answer, result)

    def _answered(self, connection: int, answer: asyncio.Future[Any], result: Any) -> None:
        if answer.done() or connection != self._connection:
            return
        if isinstance(result, CoordinationError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    async def load(self) -> dict[str, Node]:
        found: dict[str, Node] = await self._ask(lambda tree: tree.load())
        return found

    async def get(self, path: str) -> Node | None:
        found: Node | None = await self._ask(lambda tree: tree.get(path))
        return found

    async def children(self, path: str) -> dict[str, Node]:
        found: dict[str, Node] = await self._ask(lambda tree: tree.children(path))
        return found

    async def multi(self, writes: Sequence[Write]) -> None:
        session, all_writes = self._session, list(writes)
        assert session is not None or self._state is not SessionState.CONNECTED
        await self._ask(lambda tree: self._zookeeper.write(session, all_writes))  # type: ignore[arg-type]

    # ---- watches --------------------------------------------------------------------------------------------

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(callback)

        def cancel() -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        return cancel

    def changed(self, paths: list[str], connection: int) -> None:
        """The ensemble tells of changes, to whoever is connected and can hear it."""
        mine = [path for path in paths if self._watches.get(path or "/") or self._watches.get(path)]
        if not mine or self._loop.dead or connection == self._stuck:
            return
        if self._zookeeper.network.is_cut(HOST, self._host):
            self._stuck = connection
            return
        at = self._zookeeper.now + self._zookeeper.network.delay(HOST, self._host)
        self._zookeeper.world.scheduler.at(at, self._loop.call_soon, self._tell, mine, connection)

    def _tell(self, paths: list[str], connection: int) -> None:
        if connection != self._connection or self._closed:
            return
        for path in paths:
            for callback in list(self._watches.get(path or "/", ())):
                callback()
