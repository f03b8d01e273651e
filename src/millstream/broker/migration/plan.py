"""Plans what a migration of metadata to ZooKeeper writes, and what undoing it deletes. No I/O.

The node of the cluster id guards the tree. A migration first creates it as a reservation, so that
no broker starts there and none begins a new cluster. The last write turns it into the cluster id.
So a tree with the id is complete, and a tree with a reservation is known to be partial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millstream.control import znodes

Contents = Mapping[str, bytes]

_OTHER_CHROOT = "give another chroot, HOST:PORT/name"


class Obstacle(Exception):
    """The contents of ZooKeeper do not allow it; the message says what to do."""


class MigrationPlan(NamedTuple):
    """The writes of a migration.

    ``whole``: the tree is complete, and only the store must be renamed.
    """

    whole: bool
    reserve: bool
    missing: tuple[str, ...]


class UndoPlan(NamedTuple):
    """The deletions that undo a migration.

    ``ours``: the tree is that of this migration. A complete tree first becomes a reserved one
    (``reopen``). ``deletions`` have children before parents. The node of the cluster id comes last.
    """

    ours: bool
    reopen: bool
    deletions: tuple[str, ...]


NOTHING_TO_UNDO = UndoPlan(ours=False, reopen=False, deletions=())


def fingerprint(nodes: Contents) -> str:
    """Return a digest that shows whether a store has changed since its migration began."""
    digest = hashlib.sha256()
    for path, data in sorted(nodes.items()):
        digest.update(f"{len(path.encode())} {len(data)} {path}".encode() + data)
    return digest.hexdigest()


def plan_migration(nodes: Contents, tree: Contents, *, noted: bool) -> MigrationPlan:
    """Plan the writes; raise Obstacle if the tree does not allow them.

    ``noted``: a note says that exactly these nodes are being migrated to this tree. Brokers may
    already use a complete tree then.
    """
    ours = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    mark = _mark(tree)
    if mark is not None and mark.cluster_id != ours:
        state = "is the target of another migration" if mark.migrating else "has a cluster already"
        raise Obstacle(f"that ZooKeeper {state}: {_OTHER_CHROOT}")
    missing = tuple(path for path in nodes if path not in tree and path not in _GUARD)
    different = next(_different(nodes, tree), None)
    if mark is not None and not mark.migrating:
        unlike = different or next(iter(missing), None)
        if noted or unlike is None:
            return MigrationPlan(whole=True, reserve=False, missing=())
        raise Obstacle(
            f"that ZooKeeper has the cluster {ours} already, and {unlike} differs from the store: "
            "both have changed since. To keep the state of ZooKeeper, move the store away and start the "
            f"broker with zookeeper.connect; to keep that of the store, {_OTHER_CHROOT}"
        )
    if different:
        raise Obstacle(
            f"that ZooKeeper has {different} already, which differs from the store: {_OTHER_CHROOT}"
        )
    return MigrationPlan(whole=False, reserve=mark is None, missing=missing)


def plan_undo(nodes: Contents, tree: Contents) -> UndoPlan:
    """Plan the deletions. Nodes that differ from the store stay: they are not of the migration."""
    ours = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    mark = _mark(tree)
    if mark is None or mark.cluster_id != ours:
        return NOTHING_TO_UNDO
    gone = (path for path in nodes if path not in tree)
    if not mark.migrating and (used := next(_different(nodes, tree), None) or next(gone, None)):
        raise Obstacle(
            f"the migration cannot be undone: {used} in ZooKeeper has changed since, so brokers have used "
            "the cluster there. The same command without --undo completes the migration"
        )
    kept = {*_GUARD}
    for path in tree:
        if tree[path] != nodes.get(path):
            kept.update(_above(path), [path])
    deletions = sorted((path for path in nodes if path in tree and path not in kept), reverse=True)
    return UndoPlan(ours=True, reopen=not mark.migrating, deletions=tuple(deletions))


def _mark(tree: Contents) -> znodes.ClusterMark | None:
    return (
        znodes.decode_cluster_mark(tree[znodes.CLUSTER_ID]) if znodes.CLUSTER_ID in tree else None
    )


def _different(nodes: Contents, tree: Contents) -> Iterator[str]:
    """Yield the paths of the tree that the store lacks or that differ from it.

    Paths of other applications in the same ZooKeeper do not count.
    """
    tops = {znodes.CONTROLLER, *(_top(path) for path in nodes)}
    for path, data in sorted(tree.items()):
        if path != znodes.CLUSTER_ID and _top(path) in tops and nodes.get(path) != data:
            yield path


def _top(path: str) -> str:
    return "/" + path.split("/")[1]


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


# Created with the reservation, which also creates its parents.
_GUARD = frozenset({znodes.CLUSTER_ID, *_above(znodes.CLUSTER_ID)})
