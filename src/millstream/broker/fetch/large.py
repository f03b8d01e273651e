"""Fetches of thousands of partitions, which take longer than one turn of the event loop.

They do the same as ``handlers/fetch.py``, with rests between the partitions. Partitions may change
during a rest, so they are watched before they are read, not after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.fetch import followers, old_clients
from millstream.broker.fetch.delayed import SOON_S
from millstream.broker.fetch.partition_reader import KNOWS_BATCHES, READ_COMMITTED
from millstream.broker.fetch.rows import replica_id_of, rows_of
from millstream.broker.fetch.state import Fetch, TopicData, error_response
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Encoded
from millstream.broker.requests.chunks import MAX_PER_CHUNK, chunks
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.errors import ColdRead
from millstream.ports.clock import steady_ms
from millstream.ports.turns import Pace, in_slices
from millstream.replication.fetch_session import FetchContext, Key, PartitionFetch, SessionError
from millstream.wire import fetch_response
from millstream.wire.fetch_response import BY_ID
from millstream.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from millstream.broker.services import FetchServices


async def handle(
    services: FetchServices, context: RequestContext, request: FetchRequest
) -> Encoded | Awaitable[Encoded]:
    """Handle a request that names very many partitions."""
    pace = Pace()
    try:
        session = await _resolve_session(services, context, request, pace)
    except SessionError as error:
        return error_response(context, error.code)
    if request.isolation_level not in (0, READ_COMMITTED):
        return error_response(context, ErrorCode.INVALID_REQUEST)
    return await LargeFetch(Fetch(services, context, request, session), pace).serve(request)


async def _resolve_session(
    services: FetchServices, context: RequestContext, request: FetchRequest, pace: Pace
) -> FetchContext:
    by_id = context.version >= BY_ID
    rows_by_key: dict[Key, PartitionFetch] = {}
    for chunk in chunks(request.topics, "partitions"):
        chunk_rows, _ = rows_of(FetchRequest(topics=chunk.topics), by_id)
        rows_by_key |= {row.key: row for row in chunk_rows}
        await pace.rest()
    forgotten_keys: dict[Key, None] = {}
    for chunk in chunks(request.forgotten_topics_data, "partitions"):
        _, chunk_keys = rows_of(FetchRequest(forgotten_topics_data=chunk.topics), by_id)
        forgotten_keys |= dict.fromkeys(chunk_keys)
        await pace.rest()
    rows, forgotten = list(rows_by_key.values()), list(forgotten_keys)
    session = services.fetch_sessions.resolve(
        request.session_id if context.version >= 7 else 0,
        request.session_epoch if context.version >= 7 else -1,
        rows[:MAX_PER_CHUNK],
        forgotten[:MAX_PER_CHUNK],
        by_id=by_id,
        now_ms=steady_ms(services.clock),
        follower=replica_id_of(context, request) >= 0,
    )
    if session.session is None:
        session.rows = rows
        return session
    for start in range(MAX_PER_CHUNK, max(len(rows), len(forgotten)), MAX_PER_CHUNK):
        end = start + MAX_PER_CHUNK
        session.session.update(rows[start:end], forgotten[start:end])
        await pace.rest()
    session.refresh()
    return session


class LargeFetch:
    """One request: read, perhaps wait, read again, respond."""

    def __init__(self, fetch: Fetch, pace: Pace | None = None) -> None:
        self._fetch = fetch
        self._pace = pace or Pace()
        self._changed: dict[Key, PartitionFetch] = {}
        self._woken: asyncio.Future[None] | None = None
        self._watched: list[Partition] = []
        self._waits = False

    async def serve(self, request: FetchRequest) -> Encoded | Awaitable[Encoded]:
        """Return the response, or an awaitable of it if there is not enough to read yet.

        Later requests of the connection need not wait for the awaitable.
        """
        fetch, seconds = self._fetch, max(request.max_wait_ms, 0) / 1000
        try:
            if fetch.replica_id >= 0:
                await self._record_progress(request)
            if seconds:
                await self._watch()
            is_cold = await self._read()
            if seconds and not is_cold and not fetch.ready:
                waiting, self._waits = self._wait_and_respond(seconds), True
                # Converted records stay in memory until they are sent: one response of an old
                # client at a time.
                return await waiting if fetch.context.version < KNOWS_BATCHES else waiting
            return await self._respond()
        finally:
            if not self._waits:
                self._stop()

    async def _wait_and_respond(self, seconds: float) -> Encoded:
        try:
            await self._wait(seconds)
            self._fetch.session.refresh()
            await self._read()
            return await self._respond()
        finally:
            self._stop()

    def _stop(self) -> None:
        if self._fetch.session.session is not None:
            self._fetch.session.session.on_wake = None
        for partition in self._watched:
            partition.waiters.unwatch(self._on_change)
        self._watched.clear()

    async def _record_progress(self, request: FetchRequest) -> None:
        fetch = self._fetch
        epoch = fetch.begin_follower(request)
        for row in fetch.session.rows:
            followers.record_progress(fetch.reader, fetch.services.isr, (row,), epoch)
            await self._pace.rest()
        if fetch.session.session is not None:
            fetch.session.session.on_wake = self._on_change

    async def _watch(self) -> None:
        for row in self._fetch.session.rows:
            try:
                partition = self._fetch.reader.find(row)
            except ApiError:
                continue  # the read reports it
            partition.waiters.watch(self._on_change, row)
            self._watched.append(partition)
            await self._pace.rest()

    def _on_change(self, row: PartitionFetch) -> None:
        self._changed[row.key] = row
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _read(self) -> bool:
        """Read all partitions. Return whether that waited for the disk: there are records then."""
        fetch = self._fetch
        fetch.reset()
        try:
            for row in fetch.session.rows:
                fetch.add(row, fetch.reader.read(row, fetch.size))
                await self._pace.rest()
        except ColdRead:
            await fetch.read_in_thread()
            return True
        return False

    async def _wait(self, seconds: float) -> None:
        """Wait until there is enough, an error, or the time is over. Look only at changes."""
        fetch, loop = self._fetch, asyncio.get_running_loop()
        until = loop.time() + (min(seconds, SOON_S) if fetch.behind else seconds)
        fetch.start_counting()
        while True:
            while self._changed:
                _key, row = self._changed.popitem()
                was_behind = fetch.behind
                if fetch.has_enough(row):
                    return
                if fetch.behind and not was_behind:
                    until = min(until, loop.time() + SOON_S)
                await self._pace.rest()
            if loop.time() >= until:
                return
            self._woken = loop.create_future()
            await asyncio.wait([self._woken], timeout=until - loop.time())
            self._woken = None

    async def _convert(self) -> None:
        fetch, rows = self._fetch, []
        for row, data in fetch.rows:
            rows.append((row, await old_clients.converted(fetch, row, data)))
            await self._pace.rest()
        fetch.rows = rows

    async def _respond(self) -> Encoded:
        fetch = self._fetch
        if fetch.context.version < KNOWS_BATCHES and fetch.size:
            await self._convert()
        topics: TopicData = {}
        if fetch.replica_id >= 0 and fetch.services.leader_throttle.active:
            followers.count_throttled(fetch.reader, fetch.services.leader_throttle, fetch.rows)
        for row in fetch.rows:
            fetch.select((row,), topics)
            await self._pace.rest()
        steps = fetch_response.encode_steps(
            fetch.context.version,
            fetch.context.correlation_id,
            list(topics.items()),
            session_id=fetch.session.session_id,
            nodes=fetch.leader_nodes() if fetch.failed else (),
        )
        return Encoded(list(await in_slices(steps)))
