"""Coordination over ZooKeeper, through kazoo: what a cluster uses.

The session is announced as CONNECTED only after a ``sync``: what was under way when the connection broke has then either reached
the server that is read from, or will never be carried out. So whoever was told ConnectionLost, waits for CONNECTED and reads
again knows what became of the write.
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
    Refused,
    ancestors,
    blame,
    parent,
)
from millstream.ports.zookeeper.requests import GET_CHILDREN, GET_DATA, Multi, ReadMany

if TYPE_CHECKING:
    from millstream.ports.zookeeper.session import KazooSession

log = logging.getLogger("millstream.zookeeper")


DEFAULT_SESSION_TIMEOUT_MS = 6000
INSTALL = 'pip install "millstream[cluster]"'
# ZooKeeper's own nodes, which are there in every tree.
_RESERVED = "/zookeeper"
# So many reads go into one request.
_READS = 200
# Each time somebody else has changed the very nodes in between; nobody does so for long.
_MOST_ATTEMPTS = 20


def parse_connect(connect: str) -> tuple[str, str]:
    """(hosts, chroot) of ``host:port,host:port/chroot``; the chroot is empty or begins with a slash."""
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
    """Implements ``Coordination``. ``open`` connects; after that a lost connection is taken up again, and an expired session
    followed by a new one, without end."""

    def __init__(self, connect: str, *, session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS) -> None:
        self._hosts, self._root = parse_connect(connect)
        self._session_timeout_ms = session_timeout_ms
        self._kazoo: KazooSession
        self._state = SessionState.SUSPENDED
        self._connection = 0  # counts them
        self._connected = asyncio.Event()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._watches: dict[str, _Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Paths that exist, as far as is known: it saves asking. What is not true is found out by the next multi.
        self._known: set[str] = set()

    # ---- the session ----------------------------------------------------------------------------------------

    async def open(self, timeout_ms: int | None = None) -> Self:
        """Connects and makes the chroot; ConnectionLost where no server answers in time."""
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
                await self._make_root()
        except TimeoutError:
            await self.close()
            raise ConnectionLost(f"no ZooKeeper answers at {self._hosts} within {timeout_s:g} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    def watch_loop(self) -> None:
        """Let the session end when the loop is stuck for a whole session timeout.

        Not from the beginning: recovery may keep a starting broker busy, and it leads nothing yet.
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
            self._tell(state)

    async def _resume(self, connection: int) -> None:
        """Catches up with what happened while there was no connection, and only then announces it."""
        try:
            await self._ask("sync_async", "/")
        except CoordinationError:
            return  # lost again: the next connection comes here as well
        if connection != self._connection:
            return
        self._tell(SessionState.CONNECTED)
        self._connected.set()
        for watch in self._watches.values():
            self._arm(watch)

    def _tell(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        log.log(logging.INFO if state is SessionState.CONNECTED else logging.WARNING, _WORDS[state])
        for callback in list(self._listeners):
            callback(state)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make_root(self) -> None:
        for path in [*ancestors(self._root), self._root] if self._root else ():
            try:
                await self._kazoo.transact(Multi("", [Operation(Kind.CREATE, path)]))
            except Refused as refused:
                if not isinstance(refused.error, NodeExists):
                    raise refused.error from None

    async def close(self) -> None:
        self._listeners.clear()
        self._watches.clear()
        if hasattr(self, "_kazoo"):
            await self._kazoo.close()
        self._state = SessionState.SUSPENDED
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reading --------------------------------------------------------------------------------------------

    def _ask(self, method: str, *args: object) -> asyncio.Future[Any]:
        """The answer to one of kazoo's asynchronous methods."""
        return self._kazoo.submit(methodcaller(method, *args))

    def _check_session(self) -> None:
        if self._state is SessionState.EXPIRED:
            raise SessionExpired("the session with ZooKeeper has expired")
        if self._state is not SessionState.CONNECTED:
            raise ConnectionLost("there is no connection to ZooKeeper")

    async def load(self) -> dict[str, Node]:
        self._check_session()
        await self._ask("sync_async", "/")
        found = await self._tree("/")
        found.pop("/", None)
        self._known = set(found)
        return found

    async def get(self, path: str) -> Node | None:
        self._check_session()
        return (await self._tree(path, depth=0)).get(path)

    async def children(self, path: str) -> dict[str, Node]:
        self._check_session()
        base = path.rstrip("/")
        found = await self._tree(path, depth=1)
        return {one[len(base) + 1 :]: node for one, node in found.items() if one != path}

    async def _tree(self, path: str, depth: int | None = None) -> dict[str, Node]:
        """The nodes from a path down, those above first; so many levels below it, or all."""
        return await self._trees([path], depth)

    async def _trees(self, paths: Sequence[str], depth: int | None = None) -> dict[str, Node]:
        """The same for several; of one inside another each node comes once."""
        found: dict[str, Node] = {}
        level = list(paths)
        while level:
            level = [one for one in level if one not in found]
            inner: list[str] = []
            for one, answer in zip(level, await self._read(GET_DATA, level), strict=True):
                if answer is not None:
                    found[one], children = answer
                    inner += [one] if children else ()
            if depth == 0:
                break
            depth = depth and depth - 1
            names = zip(inner, await self._read(GET_CHILDREN, inner), strict=True)
            level = [f"{one.rstrip('/')}/{name}" for one, below in names for name in sorted(below or ())]
            level = [one for one in level if self._at(one) != _RESERVED]
        return found

    async def _read(self, operation: int, paths: Sequence[str]) -> list[Any]:
        slices = (paths[begin : begin + _READS] for begin in range(0, len(paths), _READS))
        asked = [
            self._kazoo.send(ReadMany(operation, tuple(self._at(path) for path in some))) for some in slices
        ]
        return [answer for answers in await asyncio.gather(*asked) for answer in answers]

    def _at(self, path: str) -> str:
        """Where a node is on the servers."""
        return self._root + path if path != "/" else self._root or "/"

    # ---- watching -------------------------------------------------------------------------------------------

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
        """In a thread of kazoo's."""
        self._kazoo.post(lambda: self._arm(watch))

    def _arm(self, watch: _Watch) -> None:
        """A watch of ZooKeeper's tells one change: each is followed by a new one, and only then by the callbacks."""
        if watch.arming:
            watch.again = True
        elif watch.callbacks and self._state is SessionState.CONNECTED:
            watch.arming = True
            self._start(self._arm_and_call(watch))

    async def _arm_and_call(self, watch: _Watch) -> None:
        at = self._at(watch.path)
        try:
            while True:
                watch.again = False
                node = self._ask("exists_async", at, watch.fire)
                below = self._ask("get_children_async", at, watch.fire)
                for answer in await asyncio.gather(node, below, return_exceptions=True):
                    if isinstance(answer, BaseException) and not isinstance(answer, NoNode):
                        return  # the connection is gone: when it is back, all watches are set again
                for callback in list(watch.callbacks):
                    asyncio.get_running_loop().call_soon(watch.call, callback)
                if not watch.again:
                    return
        finally:
            watch.arming = False
            if watch.again:
                self._arm(watch)

    # ---- writing --------------------------------------------------------------------------------------------

    async def multi(self, writes: Sequence[Write]) -> None:
        for _attempt in range(_MOST_ATTEMPTS):
            self._check_session()
            plan = await self._plan(writes)
            wrong = await self._carry_out(plan)
            if wrong is None:
                return
            self._forget(wrong)
        raise CoordinationError("what is to be written is changed by others all the time")

    async def _plan(self, writes: Sequence[Write]) -> Plan:
        doomed = [write.path for write in writes if isinstance(write, Delete)]
        below = await self._below(doomed)
        await self._learn([write for write in writes if isinstance(write, Create | Put)])
        self._known.difference_update(path for path in doomed if below[path] is None)
        self._known.update(path for path in doomed if below[path] is not None)
        return Plan.of(writes, self._known, {path: found or () for path, found in below.items()})

    async def _carry_out(self, plan: Plan) -> str | None:
        """None when all is done; else the path of which something wrong was known."""
        if sum(64 + len(one.path) + len(one.data) for one in plan.operations) > MAX_MULTI_BYTES:
            raise TooLarge(f"{len(plan.operations)} operations take more than {MAX_MULTI_BYTES:,} bytes")
        if not plan.operations:
            return None
        try:
            await self._kazoo.transact(Multi(self._root, plan.operations))
        except Refused as refused:
            operation = plan.operations[refused.index]
            if (told := blame(operation, refused.error)) is not None:
                raise told from None
            return operation.path
        self._known -= {path for path, there in plan.outcome.items() if not there}
        self._known |= {path for path, there in plan.outcome.items() if there}
        return None

    def _forget(self, path: str) -> None:
        """What is known of a node, of those above it and of those below it is out of date."""
        self._known -= {path, *ancestors(path)}
        self._known = {one for one in self._known if not one.startswith(path + "/")}

    async def _below(self, paths: Sequence[str]) -> dict[str, list[str] | None]:
        """Of each of these nodes every node below, deepest first; None where the node itself does not exist."""
        found = await self._trees(paths)
        self._known.update(found)
        below: dict[str, list[str] | None] = {path: [] if path in found else None for path in paths}
        for path in sorted(found, key=lambda one: one.count("/"), reverse=True):
            for above in ancestors(path):
                if (nodes := below.get(above)) is not None:
                    nodes.append(path)
        return below

    async def _learn(self, writes: Sequence[Create | Put]) -> None:
        """Asks which of these nodes and of those above them exist, from the top: below one that does not nothing does."""
        chains = [[*ancestors(one.path), *([one.path] if isinstance(one, Put) else ())] for one in writes]
        missing: set[str] = set()
        for depth in range(max(map(len, chains), default=0)):
            level = {chain[depth] for chain in chains if len(chain) > depth} - self._known
            found = await self._exist(sorted(path for path in level if parent(path) not in missing))
            self._known |= found
            missing |= level - found

    async def _exist(self, paths: Sequence[str]) -> set[str]:
        answers = await self._read(GET_DATA, paths)
        return {path for path, answer in zip(paths, answers, strict=True) if answer is not None}


class _Watch:
    """A watched path: whom to call, and whether the watch is just being set."""

    def __init__(self, path: str, fired: Callable[[_Watch], None]) -> None:
        self.path = path
        self.callbacks: list[Callable[[], None]] = []
        self.arming = False
        self.again = False
        # One object for as long as the watch lives: kazoo keeps it once, however often it is set.
        self.fire: Callable[[object], None] = lambda event: fired(self)

    def call(self, callback: Callable[[], None]) -> None:
        if callback in self.callbacks:  # not cancelled meanwhile
            callback()


_WORDS = {
    SessionState.CONNECTED: "connected to ZooKeeper",
    SessionState.SUSPENDED: "the connection to ZooKeeper is lost",
    SessionState.EXPIRED: "the session with ZooKeeper has expired; a new one is opened",
}
