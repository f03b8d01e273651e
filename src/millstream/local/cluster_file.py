"""``cluster.json``: what runs in the directory of ``millstream up``, for people, for tests, and for commands that change it.

The command that runs the cluster writes it whenever something changes. Others may add a broker to it or ask for a process to be
started or stopped, or a broker to be forgotten (``state`` is then ``wanted``, ``unwanted`` or ``leaving``); the one that runs the cluster does so and says what came of it.
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
    """How it stands with a process."""

    WANTED = "wanted"
    STARTING = "starting"
    UP = "up"
    SILENT = "silent"  # it runs and does not answer
    DEAD = "dead"
    UNWANTED = "unwanted"
    STOPPING = "stopping"
    STOPPED = "stopped"
    LEAVING = "leaving"  # for good


RUNNING = frozenset({State.STARTING, State.UP, State.SILENT, State.UNWANTED, State.STOPPING})


@dataclass(slots=True)
class Entry:
    """One process; ``pid`` is None while there is none."""

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
    """A ZooKeeper server, with the ports that the others of an ensemble use."""

    peer_port: int = 0
    election_port: int = 0


@dataclass(slots=True)
class ClusterFile:
    """The contents. ``port`` is that of broker 0, and 0 where the system chose; ``supervisor`` the process that runs it all."""

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
        return next((one for one in entries if one.node_id == node_id), None)


_E = TypeVar("_E", bound=Entry)
_HEAD = {"zookeeper_connect": str, "bootstrap": str, "supervisor": int | None, "port": int}
_ROW = {"node_id": int, "host": str, "port": int, "pid": int | None, "data": str, "log": str}


def read(directory: Path) -> ClusterFile | None:
    """None where there has been no cluster yet."""
    path = directory / FILE
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        hint = "mend it, or move it away (the data is found without it; ports, and --zookeepers or --zookeeper, have to be given again)"
        raise ClientError(f"cannot read {path}: {why}", hint=hint) from None


def _parsed(text: bytes) -> ClusterFile:
    """ValueError, in words for whoever has edited it, where it is not what `write` writes."""
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(rows, dict):
        raise ValueError("it is no JSON object")
    lists = {"brokers": list, "zookeepers": list}
    _check(rows, _HEAD | lists, "it", needed=(*_HEAD, *lists))
    found = ClusterFile(**{name: rows[name] for name in _HEAD})
    found.brokers = _entries(Entry, rows["brokers"], "brokers")
    found.zookeepers = _entries(ZooKeeperEntry, rows["zookeepers"], "zookeepers")
    return found


def _entries(kind: type[_E], rows: list[Any], name: str) -> list[_E]:
    known = {one.name for one in fields(kind)}
    found = []
    for number, row in enumerate(rows, 1):
        what = f"number {number} of its {name!r}"
        if not isinstance(row, dict):
            raise ValueError(f"{what} is no JSON object")
        _check(row, _ROW, what, needed=("node_id", "host", "port"))
        entry = kind(**{name: value for name, value in row.items() if name in known})
        try:
            entry.state = State(entry.state)
        except ValueError:
            raise ValueError(f"{what} has the state {entry.state!r}, which there is not") from None
        found.append(entry)
    return found


def _check(row: dict[str, Any], kinds: Mapping[str, Any], what: str, needed: Sequence[str]) -> None:
    for name, kind in kinds.items():
        if name not in row and name in needed:
            raise ValueError(f"{what} has no {name!r}")
        if name in row and not isinstance(row[name], kind):
            raise ValueError(f"{what} has {row[name]!r} as {name!r}")


def aside(directory: Path) -> Path:
    """What the directory of a broker is called when that has left; what is there is never written over."""
    first = directory.with_name(f"{directory.name}.removed")
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(name for name in chain([first], later) if not name.exists())


def write(directory: Path, cluster: ClusterFile) -> None:
    """At once or not at all, for whoever reads meanwhile."""
    temporary = directory / f"{FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(asdict(cluster), indent=2) + "\n")
    temporary.replace(directory / FILE)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Reading and then writing, without another writer in between."""
    with (directory / f"{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
