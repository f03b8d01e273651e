"""What a handler knows about the request besides its message."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.net.connection import Connection


class RequestContext(NamedTuple):
    """Where a request came from, and how to answer it.

    One per request, made in ``net/dispatch.py``. Whatever a handler has to know about the client
    and not about the broker (who it is, what it may do) belongs here; the rest is in its services.
    """

    connection: Connection
    version: int
    correlation_id: int
    client_id: str | None
