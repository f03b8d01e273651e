"""Fetch: read records of partitions, or wait until there are enough.

Versions that matter here:

* v0-v1 get messages of magic 0, v2-v3 of magic 1, converted in a child process if large. From v4
  on, batches are sent as they are stored, straight from the file. v3 adds the limit of a whole
  response (KIP-74).
* v4 adds the isolation level, the last stable offset and aborted transactions (KIP-98), v5 the log
  start offset.
* v7 adds fetch sessions (KIP-227).
* v9 adds the leader epoch of the reader, and with it fencing (KIP-320).
* v10 allows zstd (KIP-110). An older client gets UNSUPPORTED_COMPRESSION_TYPE if the topic's
  ``compression.type`` is zstd.
* v11 lets consumers read from the nearest replica (KIP-392).
* v12 adds the last fetched epoch: a diverging reader is sent to the truncation point (KIP-595).
* v13 names topics by id (KIP-516).
* v15 moves the replica id into a tagged field, with the follower's broker epoch (KIP-903).
* v16 names the current leader when the reader is at the wrong broker (KIP-951).
* v18 adds the follower's known high watermark (KIP-1166).

Different from Kafka:

* v0-v2 also get the first message whole if it exceeds the limit, instead of a truncated one.
* Later requests of the connection may overtake a fetch that waits (``Pipelining`` in
  ``wire/apis.py``).
* There is no tiered storage (v14) and no Raft log, so the directory ids of v17 are ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from millstream.broker.fetch import delayed, followers
from millstream.broker.fetch.partition_reader import KNOWS_BATCHES, READ_COMMITTED
from millstream.broker.fetch.rows import replica_id_of, rows_of
from millstream.broker.fetch.state import Fetch, error_response
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import DeferredResponse, Encoded, Hold
from millstream.core.errors import ErrorCode
from millstream.log.errors import ColdRead
from millstream.ports.clock import steady_ms
from millstream.replication.fetch_session import SessionError
from millstream.wire.fetch_response import BY_ID
from millstream.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from millstream.broker.services import FetchServices

_WITH_SESSIONS = 7
# Sessions with more partitions are served in slices: they take longer than one turn of the loop.
_MANY = 1000


def handle(
    services: FetchServices, context: RequestContext, request: FetchRequest
) -> Encoded | DeferredResponse | Awaitable[Encoded] | Hold:
    by_id = context.version >= BY_ID
    has_session = context.version >= _WITH_SESSIONS
    try:
        rows, forgotten = rows_of(request, by_id)
        session = services.fetch_sessions.resolve(
            request.session_id if has_session else 0,
            request.session_epoch if has_session else -1,
            rows,
            forgotten,
            by_id=by_id,
            now_ms=steady_ms(services.clock),
            follower=replica_id_of(context, request) >= 0,
        )
    except SessionError as error:
        return error_response(context, error.code)
    if request.isolation_level not in (0, READ_COMMITTED):
        return error_response(context, ErrorCode.INVALID_REQUEST)
    fetch = Fetch(services, context, request, session)
    if session.session is not None and session.session.size > _MANY:
        return Hold(_serve_many(fetch, request))
    if fetch.replica_id >= 0:
        epoch = fetch.begin_follower(request)
        followers.record_progress(fetch.reader, services.isr, session.rows, epoch)
    if context.version < KNOWS_BATCHES:
        return Hold(delayed.serve_old_client(fetch, max(request.max_wait_ms, 0) / 1000))
    try:
        fetch.read()
    except ColdRead:
        # Undecided until it is read: a later request may delete the records.
        return Hold(delayed.read_cold(fetch))
    if fetch.ready or request.max_wait_ms <= 0:
        return fetch.respond()
    return delayed.wait(fetch, request.max_wait_ms / 1000)


def handle_large(services: FetchServices, context: RequestContext, request: FetchRequest) -> Hold:
    """Handle a request that names very many partitions, in slices."""
    from millstream.broker.fetch import large

    return Hold(large.handle(services, context, request))


async def _serve_many(fetch: Fetch, request: FetchRequest) -> Encoded | Awaitable[Encoded]:
    from millstream.broker.fetch.large import LargeFetch

    return await LargeFetch(fetch).serve(request)
