"""Fetches of thousands of partitions, which take longer than a turn of the event loop may.

They do what ``handlers/fetch.py`` does, with rests between the partitions. Partitions change in these rests, so that they
are watched before they are read, and not behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.handlers.fetch import (
    READ_COMMITTED,
    SOON_S,
    Fetch,
    only_error,
    replica_id_of,
    wanted_rows,
)
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Encoded, ResponsePart
from millstream.broker.requests.chunks import MOST_AT_ONCE, chunks
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.errors import ColdRead
from millstream.ports.clock import steady_ms
from millstream.ports.turns import Pace, in_slices
from millstream.replication.fetch_session import FetchContext, Key, PartitionFetch, SessionError
from millstream.wire import fetch_response
from millstream.wire.fetch_response import BY_ID, PartitionData
from millstream.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from millstream.broker.services import FetchServices

# Clients of before this version of Fetch do not know batches of format 2.
_NEW_FORMAT = 4


async def handle(
    services: FetchServices, context: RequestContext, request: FetchRequest
) -> Encoded | Awaitable[Encoded]:
    """A request that names very many partitions."""
    pace = Pace()
    try:
        session = await _resolve(services, context, request, pace)
    except SessionError as error:
        return only_error(context, error.code)
    if request.isolation_level not in (0, READ_COMMITTED):
        return only_error(context, ErrorCode.INVALID_REQUEST)
    return await LargeFetch(Fetch(services, context, request, session), pace).serve(request)


async def _resolve(
    services: FetchServices, context: RequestContext, request: FetchRequest, pace: Pace
) -> FetchContext:
    by_id = context.version >= BY_ID
    rows: dict[Key, PartitionFetch] = {}
    for chunk in chunks(request.topics, "partitions"):
        some, _ = wanted_rows(FetchRequest(topics=chunk.topics), by_id)
        rows |= {row.key: row for row in some}
        await pace.rest()
    forgotten: dict[Key, None] = {}
    for chunk in chunks(request.forgotten_topics_data, "partitions"):
        _, gone = wanted_rows(FetchRequest(forgotten_topics_data=chunk.topics), by_id)
        forgotten |= dict.fromkeys(gone)
        await pace.rest()
    wanted, unwanted = list(rows.values()), list(forgotten)
    session = services.fetch_sessions.resolve(
        request.session_id if context.version >= 7 else 0,
        request.session_epoch if context.version >= 7 else -1,
        wanted[:MOST_AT_ONCE],
        unwanted[:MOST_AT_ONCE],
        by_id=by_id,
        now_ms=steady_ms(services.clock),
        follower=replica_id_of(context, request) >= 0,
    )
    if session.session is None:
        session.rows = wanted
        return session
    for start in range(MOST_AT_ONCE, max(len(wanted), len(unwanted)), MOST_AT_ONCE):
        end = start + MOST_AT_ONCE
        session.session.update(wanted[start:end], unwanted[start:end])
        await pace.rest()
    session.refresh()
    return session


class LargeFetch:
    """One request on its way."""

    def __init__(self, fetch: Fetch, pace: Pace | None = None) -> None:
        self._fetch = fetch
        self._pace = pace or Pace()
        self._changed: dict[Key, PartitionFetch] = {}
        self._woken: asyncio.Future[None] | None = None
        self._watched: list[Partition] = []
        self._waits = False

    async def serve(self, request: FetchRequest) -> Encoded | Awaitable[Encoded]:
        """The answer, or an awaitable of it when there is not enough to read yet: later requests need not wait for that."""
        fetch, seconds = self._fetch, max(request.max_wait_ms, 0) / 1000
        try:
            if fetch.replica_id >= 0:
                await self._note_follower(request)
            if seconds:
                await self._watch()
            is_cold = await self._read()
            if seconds and not is_cold and not fetch.ready:
                waiting, self._waits = self._wait_and_answer(seconds), True
                # What is converted stays in memory until it is sent: one answer of an old client at a time.
                return await waiting if fetch.context.version < _NEW_FORMAT else waiting
            return await self._answer()
        finally:
            if not self._waits:
                self._stop()

    async def _wait_and_answer(self, seconds: float) -> Encoded:
        fetch = self._fetch
        try:
            await self._wait(seconds)
            fetch.session.refresh()
            await self._read()
            return await self._answer()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._fetch.stop_listening()
        for partition in self._watched:
            partition.unwatch(self._note_change)
        self._watched.clear()

    async def _note_follower(self, request: FetchRequest) -> None:
        fetch = self._fetch
        epoch = fetch.begin_follower(request)
        for wanted in fetch.session.rows:
            fetch.note_rows((wanted,), epoch)
            await self._pace.rest()
        if fetch.session.session is not None:
            fetch.session.session.on_wake = self._note_change

    async def _watch(self) -> None:
        for wanted in self._fetch.session.rows:
            try:
                partition = self._fetch.find(wanted)
            except ApiError:
                continue  # told by the read
            partition.watch(self._note_change, wanted)
            self._watched.append(partition)
            await self._pace.rest()

    def _note_change(self, wanted: PartitionFetch) -> None:
        self._changed[wanted.key] = wanted
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _read(self) -> bool:
        """Return whether it had to wait for the disk: there is something to read then."""
        fetch = self._fetch
        fetch.reset()
        try:
            for wanted in fetch.session.rows:
                fetch.add(wanted, fetch.try_one(wanted))
                await self._pace.rest()
        except ColdRead:
            await fetch.read_rows_cold()
            return True
        return False

    async def _wait(self, seconds: float) -> None:
        """Until there is enough, something fails, or the time is over. Only what has changed is looked at."""
        fetch, loop = self._fetch, asyncio.get_running_loop()
        until = loop.time() + (min(seconds, SOON_S) if fetch.behind else seconds)
        fetch.counted = {wanted.key: data.size for wanted, data in fetch.rows if data.size}
        fetch.total = fetch.size
        fetch.reset()
        while True:
            while self._changed:
                _key, wanted = self._changed.popitem()
                behind = fetch.behind
                if fetch.enough(wanted):
                    return
                if fetch.behind and not behind:
                    until = min(until, loop.time() + SOON_S)
                await self._pace.rest()
            if loop.time() >= until:
                return
            self._woken = loop.create_future()
            await asyncio.wait([self._woken], timeout=until - loop.time())
            self._woken = None

    async def _convert(self) -> None:
        fetch, rows = self._fetch, []
        for wanted, data in fetch.rows:
            rows.append((wanted, await fetch.converted(wanted, data)))
            await self._pace.rest()
        fetch.rows = rows

    async def _answer(self) -> Encoded:
        fetch = self._fetch
        if fetch.context.version < _NEW_FORMAT and fetch.size:
            await self._convert()
        topics: dict[str | bytes, list[PartitionData[ResponsePart]]] = {}
        if fetch.replica_id >= 0 and fetch.services.leader_throttle.active:
            fetch.count_throttled()
        for row in fetch.rows:
            fetch.choose((row,), topics)
            await self._pace.rest()
        steps = fetch_response.encode_steps(
            fetch.context.version,
            fetch.context.correlation_id,
            list(topics.items()),
            session_id=fetch.session.session_id,
            nodes=fetch.leader_nodes() if fetch.failed else (),
        )
        return Encoded(list(await in_slices(steps)))
