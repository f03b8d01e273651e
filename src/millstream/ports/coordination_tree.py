"""The tree of an in-memory coordination service.

It has versions, czxids, owners of ephemeral nodes, and atomic multis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from millstream.ports.coordination import (
    ANY_VERSION,
    MAX_MULTI_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Put,
    TooLarge,
    Write,
    multi_bytes,
)


class _ZNode(NamedTuple):
    node: Node
    # The session of an ephemeral node, else 0.
    owner: int


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class Tree:
    """The state that all servers of the ensemble agree on."""

    def __init__(self) -> None:
        self.zxid = 0
        self._nodes: dict[str, _ZNode] = {}
        self._children: dict[str, dict[str, None]] = {}

    def get(self, path: str) -> Node | None:
        znode = self._nodes.get(path)
        return znode.node if znode is not None else None

    def load(self) -> dict[str, Node]:
        return {path: znode.node for path, znode in self._nodes.items()}

    def children(self, path: str) -> dict[str, Node]:
        below = self._children.get(path.rstrip("/"), {})
        return {child.rpartition("/")[2]: self._nodes[child].node for child in below}

    def owned_by(self, session: int) -> list[str]:
        return [path for path, znode in self._nodes.items() if znode.owner == session]

    def multi(self, writes: Sequence[Write], session: int) -> set[str]:
        """Apply all writes or raise. Return the paths that were touched."""
        size = multi_bytes(writes) + multi_bytes(self._below(writes))
        if size > MAX_MULTI_BYTES:
            raise TooLarge(f"{size} bytes in one multi")
        for write in writes:
            if isinstance(write, Check):
                self._check(write)
        nodes, children, zxid = (
            dict(self._nodes),
            {p: dict(c) for p, c in self._children.items()},
            self.zxid,
        )
        self.zxid += 1
        touched: set[str] = set()
        try:
            for write in writes:
                self._apply(write, session, touched)
        except BaseException:
            self._nodes, self._children, self.zxid = nodes, children, zxid
            raise
        return touched

    def _below(self, writes: Sequence[Write]) -> Iterator[Delete]:
        """Yield a deletion of each node below the deleted ones: ZooKeeper deletes node by node."""
        for write in writes:
            if isinstance(write, Delete):
                for child in self._children.get(write.path, ()):
                    delete = Delete(child)
                    yield delete
                    yield from self._below([delete])

    def _check(self, check: Check) -> None:
        node = self.get(check.path)
        if node is None:
            raise NoNode(check.path)
        if check.version not in (ANY_VERSION, node.version):
            raise BadVersion(check.path)

    def _apply(self, write: Write, session: int, touched: set[str]) -> None:
        if isinstance(write, Create):
            if write.path in self._nodes:
                raise NodeExists(write.path)
            self._create(write.path, write.data, session if write.ephemeral else 0, touched)
        elif isinstance(write, Put):
            znode = self._nodes.get(write.path)
            if znode is None:
                self._create(write.path, write.data, 0, touched)
            else:
                changed = znode.node._replace(data=write.data, version=znode.node.version + 1)
                self._nodes[write.path] = znode._replace(node=changed)
                touched.add(write.path)
        elif isinstance(write, Delete):
            self._remove(write.path, touched)

    def _create(self, path: str, data: bytes, owner: int, touched: set[str]) -> None:
        above = parent(path)
        if above and above not in self._nodes:
            self._create(above, b"", 0, touched)
        self._nodes[path] = _ZNode(Node(data, 0, self.zxid), owner)
        self._children.setdefault(above, {})[path] = None
        touched |= {path, above}

    def _remove(self, path: str, touched: set[str]) -> None:
        for child in list(self._children.pop(path, ())):
            self._remove(child, touched)
        if self._nodes.pop(path, None) is not None:
            self._children.get(parent(path), {}).pop(path, None)
            touched |= {path, parent(path)}

    def remove_all(self, paths: Iterable[str]) -> set[str]:
        """Delete the ephemeral nodes of a session that ends. Return the paths that were touched."""
        self.zxid += 1
        touched: set[str] = set()
        for path in paths:
            self._remove(path, touched)
        return touched
