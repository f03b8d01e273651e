"""Coordination, as a port: a small tree of versioned nodes with atomic multi-writes, sessions and watches: ZooKeeper's shape.

One broker alone keeps the tree in a file of its own (``embedded_coordination.py``); a cluster keeps it in ZooKeeper
(``zookeeper_coordination.py``). Paths and contents are the same in both (``control/znodes.py``), and one suite of tests
holds all of them to what is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
# ZooKeeper drops the connection of whoever sends more than 1 MiB at once (jute.maxbuffer).
MAX_MULTI_BYTES = 1_000_000


class CoordinationError(Exception):
    """The operation was refused, and nothing of it was applied; only ConnectionLost leaves that open."""


class NoNode(CoordinationError):
    """A node that the write needs does not exist."""


class NodeExists(CoordinationError):
    """A node that the write creates exists already."""


class BadVersion(CoordinationError):
    """A node has been changed since it was read."""


class TooLarge(CoordinationError):
    """The multi is larger than the service takes: write it in slices (``sliced``)."""


class ConnectionLost(CoordinationError):
    """There is no connection, or it broke before the answer came. Whether a write was applied is UNKNOWN: read again, when
    the session is CONNECTED, and only then decide."""


class SessionExpired(CoordinationError):
    """The session is over and its ephemeral nodes are gone. Nothing of this write was applied."""


class Node(NamedTuple):
    """A node as it was read. ``created`` is the czxid: higher for every later creation (the embedded store has 0)."""

    data: bytes
    version: int
    created: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; its parents appear by themselves. An ephemeral one goes with the session that made it."""

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
    """Remove a node and everything below it; one that does not exist is no error."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Let the multi pass only if the node has this version as the multi begins."""

    path: str
    version: int


Write = Create | Put | Delete | Check


class SessionState(Enum):
    """CONNECTED; SUSPENDED: the connection is lost, the session may live on; EXPIRED: the session is over, and a new one
    is being opened (CONNECTED again, with every ephemeral node gone)."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


# Ends a watch or a subscription; may be called again.
Cancel = Callable[[], None]


class Coordination(Protocol):
    """What the controller and the brokers need from a coordination service. Reads, writes and callbacks belong to the event
    loop; nothing of it blocks. While the session is not CONNECTED every call raises ConnectionLost or SessionExpired."""

    @property
    def session(self) -> SessionState:
        """How it stands with the session."""

    def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
        """``callback(state)`` at every change of the session. After EXPIRED the next CONNECTED is a new session."""

    async def load(self) -> dict[str, Node]:
        """Every node, by path."""

    async def get(self, path: str) -> Node | None:
        """One node; None where there is none."""

    async def children(self, path: str) -> dict[str, Node]:
        """The nodes directly below, by name; none where the node itself does not exist."""

    async def multi(self, writes: Sequence[Write]) -> None:
        """Apply all, durably, or none: then a CoordinationError says why (see ConnectionLost)."""

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        """``callback()`` whenever the node may have been made, changed or deleted, or a direct child made or deleted, and
        after every reconnect and new session: the caller reads again. Reading when it was called misses nothing. It
        may be called for nothing; changes that follow each other closely may be told once."""

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once. Called twice it does nothing."""


def multi_bytes(writes: Iterable[Write]) -> int:
    """What a multi may take on the wire, at most: parents that have to be made are counted for each node."""
    return sum(_write_bytes(write) for write in writes)


def _write_bytes(write: Write) -> int:
    size = 64 + len(write.path.encode())
    if isinstance(write, Create | Put):
        size += len(write.data)
    return size


def sliced(
    head: Sequence[Write], groups: Iterable[Sequence[Write]], *, most_bytes: int = MAX_MULTI_BYTES // 4
) -> Iterator[list[Write]]:
    """The groups in as few multis as their size allows, each beginning with ``head`` (the check of an epoch); a group is never
    divided. A quarter of the limit by default: parents to be made, and what a Delete finds below, come on top, and the loop is
    not held up for long."""
    batch, size = list(head), multi_bytes(head)
    for group in groups:
        more = multi_bytes(group)
        if len(batch) > len(head) and size + more > most_bytes:
            yield batch
            batch, size = list(head), multi_bytes(head)
        batch += group
        size += more
    if len(batch) > len(head):
        yield batch
