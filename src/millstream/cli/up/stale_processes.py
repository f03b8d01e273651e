"""Processes of an earlier `millstream up` in the same directory. When that is killed, the kernel asks them to end, and they take a moment for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from millstream.cli.support.output import note
from millstream.client.errors import ClientError
from millstream.local import cluster_file
from millstream.local.cluster_file import BROKER, ZOOKEEPER, Entry
from millstream.local.foreground import is_free
from millstream.local.process import STOP_TIMEOUT_S

_LOOK_EVERY_S = 0.05
# Threads of a server, and with them its ports, may be there a moment longer than the process.
_PORTS_S = 2.0


def wait_for_those_before(data: Path) -> None:
    """Until they are gone; ClientError with their names where they do not go."""
    before = left = _still_there(data)
    if not before:
        return
    note(f"waiting for {_listed(before)}: still ending since the last `millstream up` here was killed")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while left:
        if time.monotonic() > deadline:
            pids = " ".join(str(entry.pid) for entry in left.values())
            raise ClientError(f"still running in {data}: {_listed(left)}", hint=f"end them: kill {pids}")
        time.sleep(_LOOK_EVERY_S)
        left = {name: entry for name, entry in left.items() if _is_ours(entry)}
    deadline = time.monotonic() + _PORTS_S
    while time.monotonic() < deadline and not all(is_free(one.host, one.port) for one in before.values()):
        time.sleep(_LOOK_EVERY_S)


def _still_there(data: Path) -> dict[str, Entry]:
    cluster = cluster_file.read(data)
    if cluster is None:
        return {}
    kinds = ((ZOOKEEPER, cluster.zookeepers), (BROKER, cluster.brokers))
    return {f"{kind} {one.node_id}": one for kind, entries in kinds for one in entries if _is_ours(one)}


def _is_ours(entry: Entry) -> bool:
    """Whether the process writes the log of this entry: its pid may be somebody else's by now. (Linux; elsewhere no process is known.)"""
    try:
        return entry.pid is not None and os.path.samefile(f"/proc/{entry.pid}/fd/1", entry.log)
    except OSError:
        return False


def _listed(entries: dict[str, Entry]) -> str:
    return ", ".join(f"{name} (pid {entry.pid})" for name, entry in entries.items())
