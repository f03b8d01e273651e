"""Translation of the writes of a multi into ZooKeeper's operations.

A Put becomes a create or a set, a Delete deletes every node below, and missing parents are created
first. This depends on which nodes exist, and that knowledge may be stale. The servers then reject
the whole multi and name the operation that failed. ``caller_error`` decides whether the knowledge
was stale (read again and retry) or the error is the caller's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from millstream.ports.coordination import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Put,
    Write,
)


class NotEmpty(CoordinationError):
    """A node to be deleted has children."""


class Rejected(Exception):
    """The servers rejected a multi because of one of its operations."""

    def __init__(self, index: int, error: CoordinationError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class Kind(Enum):
    """The operations that ZooKeeper supports in a multi."""

    CHECK = "check"
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. ``explicit``: requested by the caller, regardless of which nodes exist."""

    kind: Kind
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    explicit: bool = False


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def ancestors(path: str) -> list[str]:
    """Return the ancestors of a node, topmost first."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


class Plan:
    """The operations of a multi.

    ``exists`` holds the existing paths. ``below`` has the descendants of each path that a Delete
    names, deepest first.
    """

    def __init__(self, exists: Collection[str], below: Mapping[str, Sequence[str]]) -> None:
        self._exists = exists
        self._below = below
        self._created: set[str] = set()
        self.operations: list[Operation] = []
        # Whether the paths that the multi touches exist after it.
        self.outcome: dict[str, bool] = {}

    @classmethod
    def of(
        cls, writes: Sequence[Write], exists: Collection[str], below: Mapping[str, Sequence[str]]
    ) -> Plan:
        plan = cls(exists, below)
        for write in writes:
            if isinstance(write, Check):
                plan.operations.append(
                    Operation(Kind.CHECK, write.path, version=write.version, explicit=True)
                )
        for write in writes:
            plan._add(write)
        return plan

    def _add(self, write: Write) -> None:
        if isinstance(write, Create):
            self._create(write.path, write.data, ephemeral=write.ephemeral, explicit=True)
        elif isinstance(write, Put):
            if self._is_present(write.path):
                self.operations.append(Operation(Kind.SET, write.path, write.data))
            else:
                self._create(write.path, write.data)
        elif isinstance(write, Delete):
            self._delete(write.path)

    def _is_present(self, path: str) -> bool:
        return self.outcome.get(path, path in self._exists)

    def _create(
        self, path: str, data: bytes, *, ephemeral: bool = False, explicit: bool = False
    ) -> None:
        above = parent(path)
        if above and not self._is_present(above):
            self._create(above, b"")
        self.operations.append(
            Operation(Kind.CREATE, path, data, ephemeral=ephemeral, explicit=explicit)
        )
        self.outcome[path] = True
        self._created.add(path)

    def _delete(self, path: str) -> None:
        prefix = path + "/"
        below = {node for node in self._created if node.startswith(prefix)}
        below.update(self._below.get(path, ()))
        for node in [*sorted(below, key=lambda node: (-node.count("/"), node)), path]:
            if self._is_present(node):
                self.operations.append(Operation(Kind.DELETE, node))
                self.outcome[node] = False


def caller_error(operation: Operation, error: CoordinationError) -> CoordinationError | None:
    """Return the caller's error for a rejected operation, or None if the known paths were stale."""
    if operation.kind is Kind.CHECK:
        return type(error)(operation.path) if isinstance(error, NoNode | BadVersion) else error
    if isinstance(error, NodeExists) and operation.explicit:
        return NodeExists(operation.path)
    if isinstance(error, NoNode | NodeExists | NotEmpty):
        return None
    return error
