"""Reads nodes of ZooKeeper, many in each request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.ports.coordination import Node
from millstream.ports.zookeeper.requests import GET_CHILDREN, GET_DATA, ReadMany

if TYPE_CHECKING:
    from millstream.ports.zookeeper.session import KazooSession

# ZooKeeper's own nodes, which exist in every tree.
_RESERVED = "/zookeeper"
# Maximum number of reads in one request.
_MAX_READS = 200


class NodeReader:
    """Reads nodes below the chroot ``root``."""

    def __init__(self, kazoo: KazooSession, root: str) -> None:
        self._kazoo = kazoo
        self._root = root

    def absolute(self, path: str) -> str:
        """Return the path of a node on the servers, with the chroot."""
        return self._root + path if path != "/" else self._root or "/"

    async def trees(self, paths: Sequence[str], depth: int | None = None) -> dict[str, Node]:
        """Read nodes and their descendants, parents first; ``depth`` levels below them, or all.

        If one tree is inside another, each node is returned once.
        """
        nodes: dict[str, Node] = {}
        level = list(paths)
        while level:
            level = [path for path in level if path not in nodes]
            inner: list[str] = []
            for path, entry in zip(level, await self._read(GET_DATA, level), strict=True):
                if entry is not None:
                    nodes[path], children = entry
                    inner += [path] if children else ()
            if depth == 0:
                break
            depth = depth and depth - 1
            names = zip(inner, await self._read(GET_CHILDREN, inner), strict=True)
            level = [
                f"{path.rstrip('/')}/{name}"
                for path, below in names
                for name in sorted(below or ())
            ]
            level = [path for path in level if self.absolute(path) != _RESERVED]
        return nodes

    async def existing(self, paths: Sequence[str]) -> set[str]:
        """Return the paths of nodes that exist."""
        entries = await self._read(GET_DATA, paths)
        return {path for path, entry in zip(paths, entries, strict=True) if entry is not None}

    async def _read(self, operation: int, paths: Sequence[str]) -> list[Any]:
        slices = (paths[begin : begin + _MAX_READS] for begin in range(0, len(paths), _MAX_READS))
        requests = [
            ReadMany(operation, tuple(self.absolute(path) for path in part)) for part in slices
        ]
        responses = await asyncio.gather(*[self._kazoo.send(request) for request in requests])
        return [entry for entries in responses for entry in entries]
