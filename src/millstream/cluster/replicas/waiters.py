"""Callbacks that wait for a change of a partition: of its high watermark, its log or its leader.

Waiters are called in the turn of the change. Watchers are delayed fetches: they are called one turn
of the event loop later, once for all changes in between, so that no append waits for readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.ports.turns import has_time
from millstream.replication.fetch_session import PartitionFetch

# Minimum number of watchers that are notified in one turn.
_WATCHERS_PER_TURN = 64

Wake = Callable[[], None]
# Called with the row of the fetch whose partition has changed.
Watcher = Callable[[PartitionFetch], None]


class PartitionWaiters:
    """The waiters and watchers of one partition; without any, it holds no collection."""

    __slots__ = ("_notifying", "_waiters", "watchers")

    def __init__(self) -> None:
        self._waiters: dict[Wake, None] | None = None
        self.watchers: dict[Watcher, PartitionFetch] | None = None
        self._notifying = False

    def add(self, wake: Wake) -> None:
        """Call ``wake`` at every change, until ``remove``."""
        if self._waiters is None:
            self._waiters = {}
        self._waiters[wake] = None

    def remove(self, wake: Wake) -> None:
        if self._waiters is not None:
            self._waiters.pop(wake, None)
            if not self._waiters:
                self._waiters = None

    def watch(self, watcher: Watcher, row: PartitionFetch) -> None:
        """Call ``watcher`` with this row after changes, until ``unwatch``."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = row

    def unwatch(self, watcher: Watcher) -> None:
        if self.watchers is not None:
            self.watchers.pop(watcher, None)
            if not self.watchers:
                self.watchers = None

    def wake(self) -> None:
        """Call the waiters, and notify the watchers. Mostly there are none: every append asks."""
        if self.watchers:
            self.notify_watchers()
        if self._waiters:
            self.wake_waiters()

    def wake_waiters(self) -> None:
        if self._waiters:
            for wake in list(self._waiters):
                wake()

    def notify_watchers(self) -> None:
        if self.watchers and not self._notifying:
            self._notifying = True
            asyncio.get_running_loop().call_soon(self._notify)

    def _notify(self) -> None:
        """Notify the watchers; the next turns continue if there are thousands."""
        self._notifying = False
        if self.watchers:
            notified = 0
            watchers = list(self.watchers.items())
            for watcher, row in watchers:
                watcher(row)
                notified += 1  # noqa: SIM113 - enumerate would be one call more for every append
                if not notified % _WATCHERS_PER_TURN and not has_time():
                    asyncio.get_running_loop().call_soon(self._notify_rest, watchers, notified)
                    return

    def _notify_rest(self, watchers: list[tuple[Watcher, PartitionFetch]], notified: int) -> None:
        until = notified + _WATCHERS_PER_TURN
        for watcher, row in watchers[notified:until]:
            if self.watchers is not None and watcher in self.watchers:
                watcher(row)
        if until < len(watchers):
            asyncio.get_running_loop().call_soon(self._notify_rest, watchers, until)
