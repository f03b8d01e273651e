"""Coordination, as a port: a small tree of versioned nodes with atomic multi-writes, the shape of ZooKeeper.

One broker alone keeps the tree in a file of its own (``embedded_coordination.py``); a cluster keeps it in ZooKeeper. Paths
and contents are the same in both (``control/znodes.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

ANY_VERSION = -1


class CoordinationError(Exception):
    """A write was refused: nothing of its multi was applied."""


class NoNode(CoordinationError):
    """A node that the write needs does not exist."""


class NodeExists(CoordinationError):
    """A node that the write creates exists already."""


class BadVersion(CoordinationError):
    """A node has been changed since it was read."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; its parents appear by themselves."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Set a node's data, whether or not it exists."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node and everything below it."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Let the multi pass only if the node has this version."""

    path: str
    version: int


Write = Create | Put | Delete | Check


class Coordination(Protocol):
    """What the controller and the brokers need from a coordination service."""

    async def load(self) -> dict[str, bytes]:
        """Every node, by path."""

    async def multi(self, writes: Sequence[Write]) -> None:
        """Apply all, durably, or none: then a CoordinationError says why."""

    async def close(self) -> None:
        """Let go of it."""
