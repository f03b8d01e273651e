"""The operations of a connection that its parts may call."""

from __future__ import annotations

from typing import Protocol

from millstream.broker.net.responses import CloseConnection

# Above this many unsent bytes no further request of a connection is handled.
UNSENT_LIMIT = 1024 * 1024


class ConnectionControl(Protocol):
    """A connection as its receive buffer, response queue and send queue see it."""

    # Whether the connection does not read.
    paused: bool
    # When the socket last took or gave bytes, by the loop's clock.
    active_at: float

    def pause(self) -> None:
        """Stop reading and handling requests."""

    def resume_soon(self) -> None:
        """Read and handle requests again in the next turn, if nothing else prevents it."""

    def advance(self) -> None:
        """Send the responses that are next in order."""

    def fail(self, error: OSError | CloseConnection) -> None:
        """Log the error and close the connection."""

    def close(self) -> None: ...
