"""Stale processes of an earlier `millstream up` in the same directory.

When that command is killed, the kernel sends SIGTERM to them, and they take a moment to exit.
"""

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

_POLL_S = 0.05
# The threads of a server, and so its ports, may outlive the process for a moment.
_PORTS_S = 2.0


def wait_for_stale_processes(data: Path) -> None:
    """Wait until they have exited. Raise ClientError with their names if they do not."""
    stale = left = _find_stale(data)
    if not stale:
        return
    note(
        f"waiting for {_listed(stale)} to exit: the last `millstream up` in this directory was killed"
    )
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while left:
        if time.monotonic() > deadline:
            pids = " ".join(str(entry.pid) for entry in left.values())
            raise ClientError(
                f"still running in {data}: {_listed(left)}", hint=f"stop them with: kill {pids}"
            )
        time.sleep(_POLL_S)
        left = {name: entry for name, entry in left.items() if _is_ours(entry)}
    deadline = time.monotonic() + _PORTS_S
    while time.monotonic() < deadline and not all(
        is_free(entry.host, entry.port) for entry in stale.values()
    ):
        time.sleep(_POLL_S)


def _find_stale(data: Path) -> dict[str, Entry]:
    cluster = cluster_file.read(data)
    if cluster is None:
        return {}
    kinds = ((ZOOKEEPER, cluster.zookeepers), (BROKER, cluster.brokers))
    return {
        f"{kind} {entry.node_id}": entry
        for kind, entries in kinds
        for entry in entries
        if _is_ours(entry)
    }


def _is_ours(entry: Entry) -> bool:
    """Return whether the process writes the log of this entry; otherwise the pid was reused.

    Works on Linux only; elsewhere no process is recognized.
    """
    try:
        return entry.pid is not None and os.path.samefile(f"/proc/{entry.pid}/fd/1", entry.log)
    except OSError:
        return False


def _listed(entries: dict[str, Entry]) -> str:
    return ", ".join(f"{name} (pid {entry.pid})" for name, entry in entries.items())
