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
    MAX_MULTI_BYTES,
    Cancel,
    ConnectionLost,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Put,
    SessionExpired,
    SessionState,
    TooLarge,
    Write,
)
from millstream.ports.zookeeper.multi import (
    Kind,
    Operation,
    Plan,
    Rejected,
    ancestors,
    caller_error,
    parent,
)
from millstream.ports.zookeeper.requests import GET_CHILDREN, GET_DATA, Multi, ReadMany

if TYPE_CHECKING:
    from millstream.ports.zookeeper.session import KazooSession

log = logging.getLogger("millstream.zookeeper")


DEFAULT_SESSION_TIMEOUT_MS = 6000
INSTALL = 'pip install "millstream[cluster]"'
# ZooKeeper's own nodes, which exist in every tree.
_RESERVED = "/zookeeper"
# Maximum number of reads in one request.
_MAX_READS = 200
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

    def __init__(self, connect: str, *, session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS) -> None:
        self._hosts, self._root = parse_connect(connect)
        self._session_timeout_ms = session_timeout_ms
        self._kazoo: KazooSession
        self._state = SessionState.SUSPENDED
        # Number of the current connection.
        self._connection = 0
        self._connected = asyncio.Event()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._watches: dict[str, _Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # A cache of existing paths, which saves reads. The next multi detects a stale entry.
        self._known: set[str] = set()

    # ---- the session -----------------------------------------------------------------------------

    async def open(self, timeout_ms: int | None = None) -> Self:
        """Connect and create the chroot; raise ConnectionLost if no server responds in time."""
        try:
            from millstream.ports.zookeeper.session import KazooSession
        except ImportError:
            raise CoordinationError(f"zookeeper.connect needs the package kazoo: {INSTALL}") from None
        timeout_s = (timeout_ms or self._session_timeout_ms) / 1000
        self._kazoo = KazooSession(self._hosts, self._session_timeout_ms, self._on_state)
        self._kazoo.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
                await self._create_root()
        except TimeoutError:
            await self.close()
            raise ConnectionLost(f"no ZooKeeper answers at {self._hosts} within {timeout_s:g} s") from None
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
        for watch in self._watches.values():
            self._arm(watch)

    def _set_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        log.log(logging.INFO if state is SessionState.CONNECTED else logging.WARNING, _STATE_MESSAGES[state])
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
        self._watches.clear()
        if hasattr(self, "_kazoo"):
            await self._kazoo.close()
        self._state = SessionState.SUSPENDED
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reading ---------------------------------------------------------------------------------

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
        nodes = await self._tree("/")
        nodes.pop("/", None)
        self._known = set(nodes)
        return nodes

    async def get(self, path: str) -> Node | None:
        self._check_session()
        return (await self._tree(path, depth=0)).get(path)

    async def children(self, path: str) -> dict[str, Node]:
        self._check_session()
        base = path.rstrip("/")
        nodes = await self._tree(path, depth=1)
        return {child[len(base) + 1 :]: node for child, node in nodes.items() if child != path}

    async def _tree(self, path: str, depth: int | None = None) -> dict[str, Node]:
        """Read a node and its descendants, parents first; ``depth`` levels below it, or all."""
        return await self._trees([path], depth)

    async def _trees(self, paths: Sequence[str], depth: int | None = None) -> dict[str, Node]:
        """Read several trees. If one is inside another, each node is returned once."""
        nodes: dict[str, Node] = {}
        level = list(paths)
        while level:
            level = [path for path in level if path not in nodes]
            inner: list[str] = []
            for path, entry in zip(level, await self._read(GET_DATA, level), strict=True):
                if entry is not None:
                    nodes[path], children = entry
                    inner += [path] if children else ()
            if depth == 0:
                break
            depth = depth and depth - 1
            names = zip(inner, await self._read(GET_CHILDREN, inner), strict=True)
            level = [f"{path.rstrip('/')}/{name}" for path, below in names for name in sorted(below or ())]
            level = [path for path in level if self._absolute(path) != _RESERVED]
        return nodes

    async def _read(self, operation: int, paths: Sequence[str]) -> list[Any]:
        slices = (paths[begin : begin + _MAX_READS] for begin in range(0, len(paths), _MAX_READS))
        requests = [ReadMany(operation, tuple(self._absolute(path) for path in part)) for part in slices]
        responses = await asyncio.gather(*[self._kazoo.send(request) for request in requests])
        return [entry for entries in responses for entry in entries]

    def _absolute(self, path: str) -> str:
        """Return the path of a node on the servers, with the chroot."""
        return self._root + path if path != "/" else self._root or "/"

    # ---- watching --------------------------------------------------------------------------------

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        watch = self._watches.get(path)
        if watch is None:
            watch = self._watches[path] = _Watch(path, self._fired)
        watch.callbacks.append(callback)
        self._arm(watch)

        def cancel() -> None:
            if callback in watch.callbacks:
                watch.callbacks.remove(callback)
            if not watch.callbacks and self._watches.get(path) is watch:
                del self._watches[path]

        return cancel

    def _fired(self, watch: _Watch) -> None:
        """Called in a thread of kazoo."""
        self._kazoo.post(lambda: self._arm(watch))

    def _arm(self, watch: _Watch) -> None:
        """Set a watch. ZooKeeper's watches fire once, so each is set again before the callbacks."""
        if watch.arming:
            watch.again = True
        elif watch.callbacks and self._state is SessionState.CONNECTED:
            watch.arming = True
            self._start(self._arm_and_call(watch))

    async def _arm_and_call(self, watch: _Watch) -> None:
        path = self._absolute(watch.path)
        try:
            while True:
                watch.again = False
                node = self._call("exists_async", path, watch.fire)
                children = self._call("get_children_async", path, watch.fire)
                for result in await asyncio.gather(node, children, return_exceptions=True):
                    if isinstance(result, BaseException) and not isinstance(result, NoNode):
                        # The connection is lost. All watches are set again after a reconnect.
                        return
                for callback in list(watch.callbacks):
                    asyncio.get_running_loop().call_soon(watch.call, callback)
                if not watch.again:
                    return
        finally:
            watch.arming = False
            if watch.again:
                self._arm(watch)

    # ---- writing ---------------------------------------------------------------------------------

    async def multi(self, writes: Sequence[Write]) -> None:
        for _attempt in range(_MAX_ATTEMPTS):
            self._check_session()
            plan = await self._plan(writes)
            stale = await self._execute(plan)
            if stale is None:
                return
            self._drop_known(stale)
        raise CoordinationError(f"other clients changed the same nodes during {_MAX_ATTEMPTS} attempts")

    async def _plan(self, writes: Sequence[Write]) -> Plan:
        deleted = [write.path for write in writes if isinstance(write, Delete)]
        below = await self._below(deleted)
        await self._learn([write for write in writes if isinstance(write, Create | Put)])
        self._known.difference_update(path for path in deleted if below[path] is None)
        self._known.update(path for path in deleted if below[path] is not None)
        return Plan.of(writes, self._known, {path: nodes or () for path, nodes in below.items()})

    async def _execute(self, plan: Plan) -> str | None:
        """Execute the plan. Return None if done, or the path whose cached existence was stale."""
        if sum(64 + len(op.path) + len(op.data) for op in plan.operations) > MAX_MULTI_BYTES:
            raise TooLarge(f"{len(plan.operations)} operations take more than {MAX_MULTI_BYTES:,} bytes")
        if not plan.operations:
            return None
        try:
            await self._kazoo.transact(Multi(self._root, plan.operations))
        except Rejected as rejected:
            operation = plan.operations[rejected.index]
            if (error := caller_error(operation, rejected.error)) is not None:
                raise error from None
            return operation.path
        self._known -= {path for path, exists in plan.outcome.items() if not exists}
        self._known |= {path for path, exists in plan.outcome.items() if exists}
        return None

    def _drop_known(self, path: str) -> None:
        """Drop a node, its ancestors and its descendants from the cache of existing paths."""
        self._known -= {path, *ancestors(path)}
        self._known = {known for known in self._known if not known.startswith(path + "/")}

    async def _below(self, paths: Sequence[str]) -> dict[str, list[str] | None]:
        """Return the descendants of each node, deepest first; None if the node does not exist."""
        nodes_read = await self._trees(paths)
        self._known.update(nodes_read)
        below: dict[str, list[str] | None] = {path: [] if path in nodes_read else None for path in paths}
        for path in sorted(nodes_read, key=lambda path: path.count("/"), reverse=True):
            for above in ancestors(path):
                if (nodes := below.get(above)) is not None:
                    nodes.append(path)
        return below

    async def _learn(self, writes: Sequence[Create | Put]) -> None:
        """Read which of these nodes and their ancestors exist, top down.

        Nothing exists below a missing node, so its descendants need no read.
        """
        chains = [
            [*ancestors(write.path), *([write.path] if isinstance(write, Put) else ())] for write in writes
        ]
        missing: set[str] = set()
        for depth in range(max(map(len, chains), default=0)):
            level = {chain[depth] for chain in chains if len(chain) > depth} - self._known
            existing = await self._existing(sorted(path for path in level if parent(path) not in missing))
            self._known |= existing
            missing |= level - existing

    async def _existing(self, paths: Sequence[str]) -> set[str]:
        entries = await self._read(GET_DATA, paths)
        return {path for path, entry in zip(paths, entries, strict=True) if entry is not None}


class _Watch:
    """A watched path: its callbacks, and whether the watch is being set right now."""

    def __init__(self, path: str, fired: Callable[[_Watch], None]) -> None:
        self.path = path
        self.callbacks: list[Callable[[], None]] = []
        self.arming = False
        self.again = False
        # The same object for the lifetime of the watch, so that kazoo stores it only once.
        self.fire: Callable[[object], None] = lambda event: fired(self)

    def call(self, callback: Callable[[], None]) -> None:
        # The watch may have been cancelled since the call was scheduled.
        if callback in self.callbacks:
            callback()


_STATE_MESSAGES = {
    SessionState.CONNECTED: "connected to ZooKeeper",
    SessionState.SUSPENDED: "the connection to ZooKeeper is lost",
    SessionState.EXPIRED: "the session with ZooKeeper has expired; opening a new one",
}
