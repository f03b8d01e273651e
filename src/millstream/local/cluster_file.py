"""``cluster.json``: the processes of ``millstream up``, for people, tests and commands.

The supervisor, which is the command that runs the cluster, writes the file after every change.
Other commands may write requests into it: add a broker, start or stop a process, or forget a
broker. The ``state`` is then ``wanted``, ``unwanted`` or ``leaving``. The supervisor carries out
the request and writes the resulting state.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

from millstream.client.errors import ClientError

FILE = "cluster.json"
BROKER, ZOOKEEPER = "broker", "zookeeper"


class State(StrEnum):
    """The state of a process, or the state requested for it."""

    WANTED = "wanted"
    STARTING = "starting"
    UP = "up"
    SILENT = "silent"  # running but not responding
    DEAD = "dead"
    UNWANTED = "unwanted"
    STOPPING = "stopping"
    STOPPED = "stopped"
    LEAVING = "leaving"  # being removed for good


RUNNING = frozenset({State.STARTING, State.UP, State.SILENT, State.UNWANTED, State.STOPPING})


@dataclass(slots=True)
class Entry:
    """A process of the cluster; ``pid`` is None while it is not running."""

    node_id: int
    host: str
    port: int
    pid: int | None = None
    state: State = State.WANTED
    data: str = ""
    log: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class ZooKeeperEntry(Entry):
    """A ZooKeeper server, with the ports for the other servers of its ensemble."""

    peer_port: int = 0
    election_port: int = 0


@dataclass(slots=True)
class ClusterFile:
    """The contents of the file.

    ``port`` is the port of broker 0, or 0 if the system chose the ports. ``supervisor`` is the pid
    of the process that runs the cluster.
    """

    zookeeper_connect: str = ""
    bootstrap: str = ""
    supervisor: int | None = None
    port: int = 0
    brokers: list[Entry] = field(default_factory=list)
    zookeepers: list[ZooKeeperEntry] = field(default_factory=list)

    def broker(self, node_id: int) -> Entry | None:
        return self.find(BROKER, node_id)

    def find(self, kind: str, node_id: int) -> Entry | None:
        entries: Sequence[Entry] = self.brokers if kind == BROKER else self.zookeepers
        return next((entry for entry in entries if entry.node_id == node_id), None)


_E = TypeVar("_E", bound=Entry)
_HEAD = {"zookeeper_connect": str, "bootstrap": str, "supervisor": int | None, "port": int}
_ROW = {"node_id": int, "host": str, "port": int, "pid": int | None, "data": str, "log": str}


def read(directory: Path) -> ClusterFile | None:
    """Read the file of a cluster, or return None if there is none yet."""
    path = directory / FILE
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        hint = "repair it, or move it away (data is found without it, but ports and --zookeepers or --zookeeper must be given again)"
        raise ClientError(f"cannot read {path}: {why}", hint=hint) from None


def _parsed(text: bytes) -> ClusterFile:
    """Parse the file, which a user may have edited. Raise ValueError with a readable message."""
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(rows, dict):
        raise ValueError("it is not a JSON object")
    lists = {"brokers": list, "zookeepers": list}
    _check(rows, _HEAD | lists, "it", needed=(*_HEAD, *lists))
    cluster = ClusterFile(**{name: rows[name] for name in _HEAD})
    cluster.brokers = _entries(Entry, rows["brokers"], "brokers")
    cluster.zookeepers = _entries(ZooKeeperEntry, rows["zookeepers"], "zookeepers")
    return cluster


def _entries(kind: type[_E], rows: list[Any], name: str) -> list[_E]:
    known = {field.name for field in fields(kind)}
    entries = []
    for number, row in enumerate(rows, 1):
        subject = f"entry {number} of {name!r}"
        if not isinstance(row, dict):
            raise ValueError(f"{subject} is not a JSON object")
        _check(row, _ROW, subject, needed=("node_id", "host", "port"))
        entry = kind(**{name: value for name, value in row.items() if name in known})
        try:
            entry.state = State(entry.state)
        except ValueError:
            raise ValueError(f"{subject} has the unknown state {entry.state!r}") from None
        entries.append(entry)
    return entries


def _check(
    row: dict[str, Any], kinds: Mapping[str, Any], subject: str, needed: Sequence[str]
) -> None:
    for name, kind in kinds.items():
        if name not in row and name in needed:
            raise ValueError(f"{subject} has no {name!r}")
        if name in row and not isinstance(row[name], kind):
            raise ValueError(f"{subject} has an invalid {name!r}: {row[name]!r}")


def removed_name(directory: Path) -> Path:
    """Return an unused name for the directory of a removed broker."""
    first = directory.with_name(f"{directory.name}.removed")
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(name for name in chain([first], later) if not name.exists())


def write(directory: Path, cluster: ClusterFile) -> None:
    """Write the file atomically, because others may read it at the same time."""
    temporary = directory / f"{FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(asdict(cluster), indent=2) + "\n")
    temporary.replace(directory / FILE)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude other writers between reading and writing the file."""
    with (directory / f"{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
