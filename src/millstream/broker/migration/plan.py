"""What a move of metadata to ZooKeeper has to write, what taking it back has to delete, or why neither may be. Pure.

The node of the cluster id guards the tree. A move makes it first, as a reservation: no broker starts there, and none begins a cluster of its
own. The last write makes it the id. So a tree with the id is whole, and one with a reservation is known for a part by whoever made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millstream.control import znodes

Contents = Mapping[str, bytes]

_OTHER_CHROOT = "give another chroot, HOST:PORT/name"


class Obstacle(Exception):
    """What is in ZooKeeper forbids it; the message says what to do."""


class Move(NamedTuple):
    """``whole``: all is there, and only the store is left to be put aside."""

    whole: bool
    reserve: bool
    missing: tuple[str, ...]


class Undo(NamedTuple):
    """``ours``: there is something to be taken back. A whole tree becomes a reserved one first (``reopen``); ``deletions`` have what is below others first, and
    the node of the cluster id goes after them."""

    ours: bool
    reopen: bool
    deletions: tuple[str, ...]


NOTHING_THERE = Undo(ours=False, reopen=False, deletions=())


def fingerprint(nodes: Contents) -> str:
    """Tells whether a store is still what it was when its move began."""
    digest = hashlib.sha256()
    for path, data in sorted(nodes.items()):
        digest.update(f"{len(path.encode())} {len(data)} {path}".encode() + data)
    return digest.hexdigest()


def plan_move(nodes: Contents, there: Contents, *, noted: bool) -> Move:
    """``noted``: a note says that exactly these nodes are on their way to this tree. Brokers may then have begun to use what is whole."""
    ours = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    mark = _mark(there)
    if mark is not None and mark.cluster_id != ours:
        what = "is where another broker is being moved to" if mark.migrating else "holds a cluster already"
        raise Obstacle(f"that ZooKeeper {what}: {_OTHER_CHROOT}")
    missing = tuple(path for path in nodes if path not in there and path not in _GUARD)
    different = next(_different(nodes, there), None)
    if mark is not None and not mark.migrating:
        unlike = different or next(iter(missing), None)
        if noted or unlike is None:
            return Move(whole=True, reserve=False, missing=())
        raise Obstacle(
            f"that ZooKeeper holds the cluster {ours} already, and {unlike} there is not as it is in the store: both have a history of "
            f"their own since. To keep that of ZooKeeper, move the store away and start the broker with zookeeper.connect; to keep that of the store, {_OTHER_CHROOT}"
        )
    if different:
        raise Obstacle(
            f"that ZooKeeper holds {different} already, which the store does not have so: {_OTHER_CHROOT}"
        )
    return Move(whole=False, reserve=mark is None, missing=missing)


def plan_undo(nodes: Contents, there: Contents) -> Undo:
    """Only what is there as the store has it goes: the rest was not written by the move."""
    ours = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    mark = _mark(there)
    if mark is None or mark.cluster_id != ours:
        return NOTHING_THERE
    gone = (path for path in nodes if path not in there)
    if not mark.migrating and (used := next(_different(nodes, there), None) or next(gone, None)):
        raise Obstacle(
            f"there is no way back: {used} in ZooKeeper is no longer as the move wrote it, so brokers have used the cluster there. The same command without "
            "--undo finishes the move"
        )
    kept = {*_GUARD}
    for path in there:
        if there[path] != nodes.get(path):
            kept.update(_above(path), [path])
    deletions = sorted((path for path in nodes if path in there and path not in kept), reverse=True)
    return Undo(ours=True, reopen=not mark.migrating, deletions=tuple(deletions))


def _mark(there: Contents) -> znodes.ClusterMark | None:
    return znodes.decode_cluster_mark(there[znodes.CLUSTER_ID]) if znodes.CLUSTER_ID in there else None


def _different(nodes: Contents, there: Contents) -> Iterator[str]:
    """What is there and not, or not so, in the nodes. What others keep in the same ZooKeeper under names of their own does not count."""
    tops = {znodes.CONTROLLER, *(_top(path) for path in nodes)}
    for path, data in sorted(there.items()):
        if path != znodes.CLUSTER_ID and _top(path) in tops and nodes.get(path) != data:
            yield path


def _top(path: str) -> str:
    return "/" + path.split("/")[1]


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


# Made with the reservation, which brings what is above it.
_GUARD = frozenset({znodes.CLUSTER_ID, *_above(znodes.CLUSTER_ID)})
