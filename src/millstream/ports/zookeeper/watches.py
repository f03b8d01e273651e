"""Watches of ZooKeeper that stay set: across events, and across connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from millstream.ports.coordination import Cancel, NoNode

if TYPE_CHECKING:
    from millstream.ports.zookeeper.session import KazooSession


class Watches:
    """The watched paths of a session.

    ``absolute`` adds the chroot to a path, and ``start`` runs a task that the owner keeps.
    """

    def __init__(
        self,
        kazoo: KazooSession,
        absolute: Callable[[str], str],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._kazoo = kazoo
        self._absolute = absolute
        self._start = start
        self._watches: dict[str, _Watch] = {}
        self.connected = False

    def add(self, path: str, callback: Callable[[], None]) -> Cancel:
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
        elif watch.callbacks and self.connected:
            watch.arming = True
            self._start(self._arm_and_call(watch))

    async def _arm_and_call(self, watch: _Watch) -> None:
        path = self._absolute(watch.path)
        try:
            while True:
                watch.again = False
                node = self._kazoo.submit(methodcaller("exists_async", path, watch.fire))
                children = self._kazoo.submit(methodcaller("get_children_async", path, watch.fire))
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

    def arm_all(self) -> None:
        """Set all watches, after a connection."""
        for watch in self._watches.values():
            self._arm(watch)

    def clear(self) -> None:
        self._watches.clear()


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
