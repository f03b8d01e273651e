"""What a handler knows about the request besides its message."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.net.connection import Connection


class RequestContext(NamedTuple):
    """Where a request came from, and how to answer it."""

    connection: Connection
    version: int
    correlation_id: int
    client_id: str | None
