"""The line that ``millstream serve`` prints once clients are served, as text or as JSON."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.broker.app import Broker

_STANDARD_STREAMS = (0, 1, 2)


def text_line(broker: Broker) -> str:
    listeners = ", ".join(str(endpoint) for endpoint in broker.advertised)
    data = ", ".join(_short_path(path) for path in broker.config.log_dirs)
    return f"millstream ready: node {broker.config.node_id}, {listeners}, data {data}, {_age_s():.2f} s"


def json_line(broker: Broker) -> str:
    """Return the same facts as one line of JSON; the keys are stable."""
    first = broker.advertised[0]
    facts: dict[str, Any] = {
        "event": "ready",
        "bootstrap": str(first).partition("://")[2],
        "host": first.host,
        "port": first.port,
        "node_id": broker.config.node_id,
        "listeners": [str(endpoint) for endpoint in broker.advertised],
        "data": [os.path.abspath(path) for path in broker.config.log_dirs],
        "pid": os.getpid(),
        "seconds": round(_age_s(), 3),
    }
    return json.dumps(facts)


def write_and_close(descriptor: int, line: str) -> None:
    """Write a line to a file descriptor of the parent and close it, so that the reader sees EOF.

    A reader that has gone away is ignored; the broker's own rules decide when it ends.
    """
    try:
        os.write(descriptor, f"{line}\n".encode())
    except BrokenPipeError:
        pass
    if descriptor not in _STANDARD_STREAMS:
        os.close(descriptor)


def _short_path(path: str) -> str:
    relative = os.path.relpath(path)
    return (
        path
        if os.path.isabs(path)
        else f"./{relative}"
        if not relative.startswith("..")
        else relative
    )


def _age_s() -> float:
    """Return the seconds since this process was started, from the kernel if possible."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return time.process_time()
