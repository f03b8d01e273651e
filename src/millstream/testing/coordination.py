"""A replacement for ZooKeeper in one process: a shared tree, and a session for each broker.

A session ends at once with its broker, so that no test waits for a session timeout.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from millstream.ports.coordination import Cancel, Node, SessionExpired, SessionState, Write
from millstream.ports.coordination_tree import Tree


class SharedTree:
    """The tree, used by the event loops of all brokers on their threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tree = Tree()
        self._sessions: dict[int, TreeSession] = {}
        self._numbers = itertools.count(1)

    async def open(self) -> TreeSession:
        """Open a session for the broker of the running event loop."""
        session = TreeSession(self, next(self._numbers))
        with self.lock:
            self._sessions[session.number] = session
        return session

    def multi(self, writes: Sequence[Write], session: int) -> None:
        with self.lock:
            if session not in self._sessions:
                raise SessionExpired("the session has ended")
            touched = self.tree.multi(writes, session)
        self._notify(touched)

    def end(self, session: int) -> None:
        """End a session, even if its broker has not noticed."""
        with self.lock:
            if self._sessions.pop(session, None) is None:
                return
            touched = self.tree.remove_all(self.tree.owned_by(session))
        self._notify(touched)

    def _notify(self, paths: Iterable[str]) -> None:
        with self.lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.changed(sorted(paths))


class TreeSession:
    """Implements ``Coordination`` for one broker."""

    def __init__(self, shared: SharedTree, number: int) -> None:
        self.number = number
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._watches: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._state = SessionState.CONNECTED

    @property
    def session(self) -> SessionState:
        return self._state

    def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
        return lambda: None  # the session ends only with its broker

    def _tree(self) -> Tree:
        if self._state is not SessionState.CONNECTED:
            raise SessionExpired("the session has ended")
        return self._shared.tree

    async def load(self) -> dict[str, Node]:
        with self._shared.lock:
            return self._tree().load()

    async def get(self, path: str) -> Node | None:
        with self._shared.lock:
            return self._tree().get(path)

    async def children(self, path: str) -> dict[str, Node]:
        with self._shared.lock:
            return self._tree().children(path)

    async def multi(self, writes: Sequence[Write]) -> None:
        self._tree()
        self._shared.multi(writes, self.number)

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        callbacks = self._watches[path]
        callbacks.append(callback)

        def cancel() -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        return cancel

    def changed(self, paths: Sequence[str]) -> None:
        """Schedule the watches of these paths; may be called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._call, paths)
        except RuntimeError:
            pass  # the loop is closed, because the broker is dead

    def _call(self, paths: Sequence[str]) -> None:
        for path in paths:
            for callback in list(self._watches.get(path, ())):
                callback()

    async def close(self) -> None:
        self._state = SessionState.EXPIRED
        self._shared.end(self.number)
