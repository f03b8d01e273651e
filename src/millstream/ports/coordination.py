"""The coordination port: a small tree of versioned nodes with atomic multis, sessions and watches.

The model is ZooKeeper's. A single broker keeps the tree in a file (``embedded_coordination.py``); a
cluster keeps it in ZooKeeper (``zookeeper/coordination.py``). Paths and contents are the same in
both. One test suite checks that all implementations follow the contract below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
# ZooKeeper closes the connection of a client that sends a request over 1 MiB (jute.maxbuffer).
MAX_MULTI_BYTES = 1_000_000


class CoordinationError(Exception):
    """The operation was rejected and not applied. Only after ConnectionLost is that unknown."""


class NoNode(CoordinationError):
    """A node that the write needs does not exist."""


class NodeExists(CoordinationError):
    """A node that the write creates exists already."""


class BadVersion(CoordinationError):
    """A node has been changed since it was read."""


class TooLarge(CoordinationError):
    """The multi exceeds the size limit of the service. Write it in slices (``sliced``)."""


class ConnectionLost(CoordinationError):
    """There is no connection, or it broke before the response arrived.

    Whether a write was applied is UNKNOWN: wait until the session is CONNECTED, read again, and
    only then decide.
    """


class SessionExpired(CoordinationError):
    """The session has expired and its ephemeral nodes are deleted. The write was not applied."""


class Node(NamedTuple):
    """A node as it was read.

    ``created`` is the czxid: higher for every later creation (always 0 in the embedded store).
    """

    data: bytes
    version: int
    created: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node, and missing parents. An ephemeral node is deleted when its session ends."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Set a node's data, whether or not it exists."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node and everything below it. A missing node is not an error."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Reject the multi unless the node has this version when the multi begins."""

    path: str
    version: int


Write = Create | Put | Delete | Check


class SessionState(Enum):
    """The state of a session.

    SUSPENDED: the connection is lost, but the session may still be alive. EXPIRED: the session has
    ended and a new one is being opened. It will be CONNECTED without any of the ephemeral nodes.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


# Cancels a watch or a subscription; idempotent.
Cancel = Callable[[], None]


class Coordination(Protocol):
    """The operations that the controller and the brokers need from a coordination service.

    All calls and callbacks run on the event loop, and none of them blocks. While the session is not
    CONNECTED, every call raises ConnectionLost or SessionExpired.
    """

    @property
    def session(self) -> SessionState:
        """The state of the session."""

    def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
        """Call ``callback(state)`` at every state change of the session.

        After EXPIRED, the next CONNECTED is a new session.
        """

    async def load(self) -> dict[str, Node]:
        """Return every node, by path."""

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if it does not exist."""

    async def children(self, path: str) -> dict[str, Node]:
        """Return the children by name; empty if the node itself does not exist."""

    async def multi(self, writes: Sequence[Write]) -> None:
        """Apply all writes durably, or raise CoordinationError and apply none (ConnectionLost)."""

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        """Call ``callback()`` when the node, or its set of children, may have changed.

        Changes are: the node created, changed or deleted, or a direct child created or deleted. The
        callback is also called after every reconnect and new session. A caller that reads again in
        each callback misses nothing. There may be spurious calls, and changes in quick succession
        may be merged into one call.
        """

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes at once. Idempotent."""


def multi_bytes(writes: Iterable[Write]) -> int:
    """Estimate the size of a multi on the wire. Missing parents are not counted."""
    return sum(_write_bytes(write) for write in writes)


def _write_bytes(write: Write) -> int:
    size = 64 + len(write.path.encode())
    if isinstance(write, Create | Put):
        size += len(write.data)
    return size


def sliced(
    head: Sequence[Write],
    groups: Iterable[Sequence[Write]],
    *,
    max_bytes: int = MAX_MULTI_BYTES // 4,
) -> Iterator[list[Write]]:
    """Yield the groups in as few multis as their size allows, each starting with ``head``.

    ``head`` is the check of an epoch. A group is never split. The default is a quarter of the
    limit: missing parents and the nodes below a deleted node come on top, and a smaller multi does
    not block the event loop for long.
    """
    batch, size = list(head), multi_bytes(head)
    for group in groups:
        group_size = multi_bytes(group)
        if len(batch) > len(head) and size + group_size > max_bytes:
            yield batch
            batch, size = list(head), multi_bytes(head)
        batch += group
        size += group_size
    if len(batch) > len(head):
        yield batch
