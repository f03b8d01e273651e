"""The logs that wait for housekeeping: to be flushed, written back, or truncated completely."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from weakref import WeakSet

from millstream.log.state import LogState


class WorkQueues:
    """Filled by the logs, emptied by housekeeping, which `listen`s while it runs."""

    def __init__(self) -> None:
        self.flush: dict[LogState, None] = {}
        self.writeback: dict[LogState, None] = {}
        self.unfinished: dict[LogState, None] = {}  # truncations that the disk interrupted
        self.timed: WeakSet[LogState] = WeakSet()  # logs with a flush.ms
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call the listener whenever work arrives; None: nothing listens any more."""
        self._listener = listener

    def wake(self) -> None:
        if self._listener is not None:
            self._listener()

    def add_flush(self, log: LogState) -> None:
        self.flush[log] = None
        self.wake()

    def add_writeback(self, log: LogState) -> None:
        # Every append requests it until it is done, even while the disk rests: wake once.
        if log not in self.writeback:
            self.writeback[log] = None
            self.wake()

    def remove(self, log: LogState) -> None:
        """Remove a log that is closed."""
        self.flush.pop(log, None)
        self.writeback.pop(log, None)
        self.unfinished.pop(log, None)


class LoopThread:
    """Runs calls on the thread of the event loop, which is the one that creates this object."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass calls from other threads to this loop. Before, they run where they are made."""
        self._loop = loop

    def run(self, call: Callable[[], None]) -> None:
        if self._loop is None or threading.get_ident() == self._thread:
            call()
        else:
            self._loop.call_soon_threadsafe(call)
