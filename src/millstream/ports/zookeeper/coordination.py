"""Coordination over ZooKeeper, through kazoo, for clusters.

The session is reported as CONNECTED only after a ``sync``. By then, a write that was in flight when
the connection broke has either reached the server that is read from, or will never be applied. So a
caller that got ConnectionLost, waits for CONNECTED and reads again knows the outcome of its write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Self

from millstream.ports.coordination import (
    Cancel,
    ConnectionLost,
    CoordinationError,
    Node,
    NodeExists,
    SessionExpired,
    SessionState,
    Write,
)
from millstream.ports.zookeeper.multi import (
    Kind,
    Operation,
    Rejected,
    ancestors,
)
from millstream.ports.zookeeper.reader import NodeReader
from millstream.ports.zookeeper.requests import Multi
from millstream.ports.zookeeper.watches import Watches
from millstream.ports.zookeeper.writer import NodeWriter

if TYPE_CHECKING:
    from millstream.ports.zookeeper.session import KazooSession

log = logging.getLogger("millstream.zookeeper")


DEFAULT_SESSION_TIMEOUT_MS = 6000
INSTALL = 'pip install "millstream[cluster]"'
# An attempt fails only if another client changed the same nodes at the same time.
_MAX_ATTEMPTS = 20


def parse_connect(connect: str) -> tuple[str, str]:
    """Return (hosts, chroot) of ``host:port,host:port/chroot``.

    The chroot is empty or begins with a slash.
    """
    hosts, slash, chroot = connect.strip().partition("/")
    names = [host.strip() for host in hosts.split(",") if host.strip()]
    parts = [part for part in chroot.split("/") if part]
    if not names:
        raise ValueError("no host: expected HOST:PORT[,HOST:PORT...][/CHROOT]")
    for name in names:
        port = name.rpartition(":")[2] if ":" in name and not name.endswith("]") else "2181"
        if (
            not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)
            or " " in name
            or name[0] == ":"
        ):
            raise ValueError(f"{name!r} is not HOST:PORT")
    if slash and any(part in (".", "..") for part in parts):
        raise ValueError(f"/{chroot} is not a path")
    return ",".join(names), "".join(f"/{part}" for part in parts)


class ZooKeeperCoordination:
    """Implements ``Coordination``.

    ``open`` connects. After that, a lost connection is reconnected and an expired session replaced,
    without a limit of attempts.
    """

    def __init__(
        self, connect: str, *, session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    ) -> None:
        self._hosts, self._root = parse_connect(connect)
        self._session_timeout_ms = session_timeout_ms
        # These work through the session, so ``open`` makes them.
        self._kazoo: KazooSession
        self._reader: NodeReader
        self._writer: NodeWriter
        self._watches: Watches
        self._state = SessionState.SUSPENDED
        # Number of the current connection.
        self._connection = 0
        self._connected = asyncio.Event()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- the session ----

    async def open(self, timeout_ms: int | None = None) -> Self:
        """Connect and create the chroot; raise ConnectionLost if no server responds in time."""
        try:
            from millstream.ports.zookeeper.session import KazooSession
        except ImportError:
            raise CoordinationError(
                f"zookeeper.connect needs the package kazoo: {INSTALL}"
            ) from None
        timeout_s = (timeout_ms or self._session_timeout_ms) / 1000
        self._kazoo = KazooSession(self._hosts, self._session_timeout_ms, self._on_state)
        self._reader = NodeReader(self._kazoo, self._root)
        self._writer = NodeWriter(self._kazoo, self._reader, self._root)
        self._watches = Watches(self._kazoo, self._reader.absolute, self._start)
        self._kazoo.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
                await self._create_root()
        except TimeoutError:
            await self.close()
            raise ConnectionLost(
                f"no ZooKeeper answers at {self._hosts} within {timeout_s:g} s"
            ) from None
        except BaseException:
            await self.close()
            raise
        return self

    def watch_loop(self) -> None:
        """Let the session expire if the loop is stuck for a whole session timeout.

        Not enabled from the beginning: recovery may keep a starting broker busy, and it does not
        lead any partition yet.
        """
        self._kazoo.watch_loop()

    @property
    def session(self) -> SessionState:
        return self._state

    def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
        self._listeners.append(callback)

        def cancel() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return cancel

    def _on_state(self, state: SessionState) -> None:
        self._connection += 1
        if state is SessionState.CONNECTED:
            self._start(self._resume(self._connection))
        else:
            self._set_state(state)

    async def _resume(self, connection: int) -> None:
        """Report a connection once the server has caught up with all earlier writes."""
        try:
            await self._call("sync_async", "/")
        except CoordinationError:
            return  # lost again: the next connection resumes
        if connection != self._connection:
            return
        self._set_state(SessionState.CONNECTED)
        self._connected.set()
        self._watches.arm_all()

    def _set_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        self._watches.connected = state is SessionState.CONNECTED
        log.log(
            logging.INFO if state is SessionState.CONNECTED else logging.WARNING,
            _STATE_MESSAGES[state],
        )
        for callback in list(self._listeners):
            callback(state)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create_root(self) -> None:
        for path in [*ancestors(self._root), self._root] if self._root else ():
            try:
                await self._kazoo.transact(Multi("", [Operation(Kind.CREATE, path)]))
            except Rejected as rejected:
                if not isinstance(rejected.error, NodeExists):
                    raise rejected.error from None

    async def close(self) -> None:
        self._listeners.clear()
        if hasattr(self, "_kazoo"):
            self._watches.clear()
            await self._kazoo.close()
            self._watches.connected = False
        self._state = SessionState.SUSPENDED
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reading ----

    def _call(self, method: str, *args: object) -> asyncio.Future[Any]:
        """Call one of kazoo's asynchronous methods."""
        return self._kazoo.submit(methodcaller(method, *args))

    def _check_session(self) -> None:
        if self._state is SessionState.EXPIRED:
            raise SessionExpired("the session with ZooKeeper has expired")
        if self._state is not SessionState.CONNECTED:
            raise ConnectionLost("not connected to ZooKeeper")

    async def load(self) -> dict[str, Node]:
        self._check_session()
        await self._call("sync_async", "/")
        nodes = await self._reader.trees(["/"])
        nodes.pop("/", None)
        self._writer.known = set(nodes)
        return nodes

    async def get(self, path: str) -> Node | None:
        self._check_session()
        return (await self._reader.trees([path], depth=0)).get(path)

    async def children(self, path: str) -> dict[str, Node]:
        self._check_session()
        base = path.rstrip("/")
        nodes = await self._reader.trees([path], depth=1)
        return {child[len(base) + 1 :]: node for child, node in nodes.items() if child != path}

    # ---- watching ----

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        return self._watches.add(path, callback)

    # ---- writing ----

    async def multi(self, writes: Sequence[Write]) -> None:
        for _attempt in range(_MAX_ATTEMPTS):
            self._check_session()
            if await self._writer.attempt(writes):
                return
        raise CoordinationError(
            f"other clients changed the same nodes during {_MAX_ATTEMPTS} attempts"
        )


_STATE_MESSAGES = {
    SessionState.CONNECTED: "connected to ZooKeeper",
    SessionState.SUSPENDED: "the connection to ZooKeeper is lost",
    SessionState.EXPIRED: "the session with ZooKeeper has expired; opening a new one",
}
