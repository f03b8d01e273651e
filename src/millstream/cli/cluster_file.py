"""``cluster.json``: what runs in the directory of ``millstream up``, for people, for tests, and for commands that change it.

The command that runs the cluster writes it whenever something changes. Others may add a broker to it or ask for a process to be
started or stopped, or a broker to be forgotten (``state`` is then ``wanted``, ``unwanted`` or ``leaving``); the one that runs the cluster does so and says what came of it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
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


def _entries(kind: type[_E], rows: list[dict[str, Any]]) -> list[_E]:
    known = {one.name for one in fields(kind)}
    found = [kind(**{name: value for name, value in row.items() if name in known}) for row in rows]
    for one in found:
        one.state = State(one.state)
    return found


def read(directory: Path) -> ClusterFile | None:
    """None where there has been no cluster yet."""
    path = directory / FILE
    try:
        rows = json.loads(path.read_text())
        found = ClusterFile(
            **{name: rows[name] for name in ("zookeeper_connect", "bootstrap", "supervisor", "port")}
        )
        found.brokers = _entries(Entry, rows["brokers"])
        found.zookeepers = _entries(ZooKeeperEntry, rows["zookeepers"])
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClientError(
            f"cannot read {path}: {error}", hint="mend it, or move it away (the data stays)"
        ) from None


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
