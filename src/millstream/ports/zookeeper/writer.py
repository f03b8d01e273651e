"""Executes writes as one multi request of ZooKeeper, with a cache of existing paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.ports.coordination import MAX_MULTI_BYTES, Create, Delete, Put, TooLarge, Write
from millstream.ports.zookeeper.multi import Plan, Rejected, ancestors, caller_error, parent
from millstream.ports.zookeeper.reader import NodeReader
from millstream.ports.zookeeper.requests import Multi

if TYPE_CHECKING:
    from millstream.ports.zookeeper.session import KazooSession


class NodeWriter:
    """Plans and executes writes below the chroot ``root``."""

    def __init__(self, kazoo: KazooSession, reader: NodeReader, root: str) -> None:
        self._kazoo = kazoo
        self._reader = reader
        self._root = root
        # A cache of existing paths, which saves reads. The next multi detects a stale entry.
        self.known: set[str] = set()

    async def attempt(self, writes: Sequence[Write]) -> bool:
        """Execute writes; False if other clients changed the nodes and the caller must retry."""
        stale = await self._execute(await self._plan(writes))
        if stale is None:
            return True
        self._drop_known(stale)
        return False

    async def _plan(self, writes: Sequence[Write]) -> Plan:
        deleted = [write.path for write in writes if isinstance(write, Delete)]
        below = await self._below(deleted)
        await self._learn([write for write in writes if isinstance(write, Create | Put)])
        self.known.difference_update(path for path in deleted if below[path] is None)
        self.known.update(path for path in deleted if below[path] is not None)
        return Plan.of(writes, self.known, {path: nodes or () for path, nodes in below.items()})

    async def _execute(self, plan: Plan) -> str | None:
        """Execute the plan. Return None if done, or the path whose cached existence was stale."""
        if sum(64 + len(op.path) + len(op.data) for op in plan.operations) > MAX_MULTI_BYTES:
            raise TooLarge(
                f"{len(plan.operations)} operations take more than {MAX_MULTI_BYTES:,} bytes"
            )
        if not plan.operations:
            return None
        try:
            await self._kazoo.transact(Multi(self._root, plan.operations))
        except Rejected as rejected:
            operation = plan.operations[rejected.index]
            if (error := caller_error(operation, rejected.error)) is not None:
                raise error from None
            return operation.path
        self.known -= {path for path, exists in plan.outcome.items() if not exists}
        self.known |= {path for path, exists in plan.outcome.items() if exists}
        return None

    def _drop_known(self, path: str) -> None:
        """Drop a node, its ancestors and its descendants from the cache of existing paths."""
        self.known -= {path, *ancestors(path)}
        self.known = {known for known in self.known if not known.startswith(path + "/")}

    async def _below(self, paths: Sequence[str]) -> dict[str, list[str] | None]:
        """Return the descendants of each node, deepest first; None if the node does not exist."""
        nodes_read = await self._reader.trees(paths)
        self.known.update(nodes_read)
        below: dict[str, list[str] | None] = {
            path: [] if path in nodes_read else None for path in paths
        }
        for path in sorted(nodes_read, key=lambda path: path.count("/"), reverse=True):
            for above in ancestors(path):
                if (nodes := below.get(above)) is not None:
                    nodes.append(path)
        return below

    async def _learn(self, writes: Sequence[Create | Put]) -> None:
        """Read which of these nodes and their ancestors exist, top down.

        Nothing exists below a missing node, so its descendants need no read.
        """
        chains = [
            [*ancestors(write.path), *([write.path] if isinstance(write, Put) else ())]
            for write in writes
        ]
        missing: set[str] = set()
        for depth in range(max(map(len, chains), default=0)):
            level = {chain[depth] for chain in chains if len(chain) > depth} - self.known
            existing = await self._reader.existing(
                sorted(path for path in level if parent(path) not in missing)
            )
            self.known |= existing
            missing |= level - existing
