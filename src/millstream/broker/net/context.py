"""The context of a request: its connection and its header."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.net.connection import Connection


class RequestContext(NamedTuple):
    """The origin of a request, and the version of its response.

    ``net/dispatch.py`` makes one per request. Facts about the client (who it is, what it may do)
    belong here. Facts about the broker are in the handler's services.
    """

    connection: Connection
    version: int
    correlation_id: int
    client_id: str | None
