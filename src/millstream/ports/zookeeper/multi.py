"""The writes of a multi as ZooKeeper has them: a Put is a create or a set, a Delete one of every node below, parents come first.

That takes knowledge of what exists. It may be out of date: then the servers refuse the whole multi, say which operation does not
fit, and ``blame`` tells whether the knowledge was wrong (look again) or the caller is to be told.
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
    """A node to be deleted has got something below it meanwhile."""


class Refused(Exception):
    """The servers refused a multi because of one of its operations."""

    def __init__(self, index: int, error: CoordinationError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class Kind(Enum):
    """What ZooKeeper can do in a multi."""

    CHECK = "check"
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; ``asked``: the caller wants exactly this, it was not chosen because of what exists."""

    kind: Kind
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    asked: bool = False


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def ancestors(path: str) -> list[str]:
    """Those above a node, the topmost first."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


class Plan:
    """``exists`` holds the paths that are there, ``below`` what is below each path that a Delete names, deepest first."""

    def __init__(self, exists: Collection[str], below: Mapping[str, Sequence[str]]) -> None:
        self._exists = exists
        self._below = below
        self._made: set[str] = set()
        self.operations: list[Operation] = []
        # How the multi leaves the paths that it touches.
        self.outcome: dict[str, bool] = {}

    @classmethod
    def of(cls, writes: Sequence[Write], exists: Collection[str], below: Mapping[str, Sequence[str]]) -> Plan:
        plan = cls(exists, below)
        for write in writes:
            if isinstance(write, Check):
                plan.operations.append(Operation(Kind.CHECK, write.path, version=write.version, asked=True))
        for write in writes:
            plan._add(write)
        return plan

    def _add(self, write: Write) -> None:
        if isinstance(write, Create):
            self._create(write.path, write.data, ephemeral=write.ephemeral, asked=True)
        elif isinstance(write, Put):
            if self._there(write.path):
                self.operations.append(Operation(Kind.SET, write.path, write.data))
            else:
                self._create(write.path, write.data)
        elif isinstance(write, Delete):
            self._delete(write.path)

    def _there(self, path: str) -> bool:
        return self.outcome.get(path, path in self._exists)

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False, asked: bool = False) -> None:
        above = parent(path)
        if above and not self._there(above):
            self._create(above, b"")
        self.operations.append(Operation(Kind.CREATE, path, data, ephemeral=ephemeral, asked=asked))
        self.outcome[path] = True
        self._made.add(path)

    def _delete(self, path: str) -> None:
        begin = path + "/"
        doomed = {one for one in self._made if one.startswith(begin)}
        doomed.update(self._below.get(path, ()))
        for one in [*sorted(doomed, key=lambda one: (-one.count("/"), one)), path]:
            if self._there(one):
                self.operations.append(Operation(Kind.DELETE, one))
                self.outcome[one] = False


def blame(operation: Operation, error: CoordinationError) -> CoordinationError | None:
    """What the caller is to be told of a refused operation; None where what was known to exist was wrong."""
    if operation.kind is Kind.CHECK:
        return type(error)(operation.path) if isinstance(error, NoNode | BadVersion) else error
    if isinstance(error, NodeExists) and operation.asked:
        return NodeExists(operation.path)
    if isinstance(error, NoNode | NodeExists | NotEmpty):
        return None
    return error
