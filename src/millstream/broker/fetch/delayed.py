"""Delayed fetches: a fetch waits until there is enough to read, an error, or its maximum time.

A delayed fetch is not a task. Partitions report changes to it (``Partition.watch``), and it
delivers its response with a call. One append may complete hundreds of them, so each completes in a
turn of the loop that has time for it (``ports/turns.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.broker.fetch import old_clients
from millstream.broker.fetch.state import Fetch
from millstream.broker.net.responses import DeferredResponse, Encoded
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError
from millstream.log.errors import ColdRead
from millstream.ports.turns import has_time
from millstream.replication.fetch_session import PartitionFetch

# Maximum time a follower's fetch waits for records when only the high watermark has moved. Under
# load, records arrive sooner and carry it along, which saves a fetch.
SOON_S = 0.005


class DelayedFetch:
    """Watches the partitions of a fetch. Calls ``on_complete`` once, unless it is abandoned."""

    __slots__ = ("_complete", "_fetch", "_loop", "_on_complete", "_starting", "_timer", "_watched")

    def __init__(self, fetch: Fetch, seconds: float, on_complete: Callable[[], None]) -> None:
        self._fetch = fetch
        self._on_complete: Callable[[], None] | None = on_complete
        self._loop = asyncio.get_running_loop()
        delay_s = min(seconds, SOON_S) if fetch.behind else seconds
        self._timer = self._loop.call_later(delay_s, self._end)
        self._complete, self._starting = False, True
        self._watched: list[Partition] = []
        self._watch()
        self._starting = False

    def _watch(self) -> None:
        fetch = self._fetch
        rows = fetch.rows
        fetch.start_counting()
        for row, _ in rows:
            partition = fetch.reader.find(row)
            partition.waiters.watch(self._changed, row)
            self._watched.append(partition)
        if fetch.replica_id >= 0:
            if fetch.session.session is not None:
                fetch.session.session.on_wake = self._watch_woken
            for row in fetch.woken:
                self._watch_woken(row)

    def _watch_woken(self, row: PartitionFetch) -> None:
        """Count a partition that is no longer idle as changed, and watch it."""
        try:
            partition = self._fetch.reader.find(row)
        except ApiError:
            pass  # the read reports it
        else:
            partition.waiters.watch(self._changed, row)
            self._watched.append(partition)
        self._changed(row)

    def _changed(self, row: PartitionFetch) -> None:
        if self._complete:
            return
        if self._starting:
            self._loop.call_soon(self._changed, row)
            return
        was_behind = self._fetch.behind
        if self._fetch.has_enough(row):
            self._end()
        elif self._fetch.behind and not was_behind:
            self._timer.cancel()
            self._timer = self._loop.call_later(SOON_S, self._end)

    def _end(self) -> None:
        if not self._complete:
            self._complete = True
            self._timer.cancel()
            self._respond()

    def _respond(self) -> None:
        on_complete = self._on_complete
        if on_complete is None:
            return
        if has_time():
            self._on_complete = None
            self._unwatch()
            on_complete()
        else:
            # The response comes later, so it must read again.
            self._fetch.reset()
            self._loop.call_soon(self._respond)

    def _unwatch(self) -> None:
        """Stop watching; only in a turn with time for it, because fetches have many partitions."""
        for partition in self._watched:
            partition.waiters.unwatch(self._changed)
        self._watched = []
        if self._fetch.session.session is not None:
            self._fetch.session.session.on_wake = None

    def abandon(self) -> None:
        """Stop waiting: the connection is closed."""
        if self._on_complete is not None:
            self._on_complete = None
            self._complete = True
            self._timer.cancel()
            self._unwatch()


def wait(fetch: Fetch, seconds: float) -> DeferredResponse:
    """Delay the response until there is enough to read, an error, or the time is over."""
    delayed = DelayedFetch(fetch, seconds, lambda: _deliver(fetch, deferred))
    deferred = DeferredResponse(delayed.abandon)
    return deferred


def _deliver(fetch: Fetch, deferred: DeferredResponse) -> None:
    try:
        if not fetch.rows:
            fetch.session.refresh()
            fetch.reset()
            fetch.read()
        response = fetch.respond()
    except Exception:
        # In a task the same error is raised again and logged, or the disk is waited for.
        deferred.become(read_and_respond(fetch))
    else:
        deferred.deliver(response)


async def read_and_respond(fetch: Fetch) -> Encoded:
    """Read again, in a thread if the data is not in memory, and respond."""
    fetch.session.refresh()
    fetch.reset()
    try:
        fetch.read()
    except ColdRead:
        return await read_cold(fetch)
    return await old_clients.respond(fetch)


async def read_cold(fetch: Fetch) -> Encoded:
    """Read in a thread, and respond. There are records to read, so the fetch need not wait."""
    await fetch.read_in_thread()
    return await old_clients.respond(fetch)


async def serve_old_client(fetch: Fetch, seconds: float) -> Encoded:
    """Read, wait and respond in one coroutine, for a client of before format 2.

    Converted records stay in memory until they are sent, so a connection gets one such response at
    a time.
    """
    try:
        fetch.read()
    except ColdRead:
        return await read_cold(fetch)
    if fetch.ready or not seconds:
        return await old_clients.respond(fetch)
    complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    delayed = DelayedFetch(fetch, seconds, lambda: _finish(complete))
    try:
        await complete
    finally:
        delayed.abandon()
    return await read_and_respond(fetch)


def _finish(complete: asyncio.Future[None]) -> None:
    if not complete.done():  # the connection may have been closed
        complete.set_result(None)
