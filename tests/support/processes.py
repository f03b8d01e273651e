"""What can be seen of a broker process from outside: its memory, its children, and what its log
complains of.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 120.0
# What a broker never says because of what a client or a user did.
_COMPLAINTS = (
    "Traceback",
    "unexpectedly",
    "never awaited",
    "never retrieved",
    "Exception in callback",
    "Exception ignored",
    "Task was destroyed",
)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns when the condition holds; fails when it has not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain: {what}"
        time.sleep(0.005)


def memory_mib(pid: int, row: str = "VmRSS") -> float:
    """A row of /proc/<pid>/status: VmRSS is the memory now, VmHWM the most there has been."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(row + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {row} for {pid}")


def children_of(pid: int) -> list[int]:
    return [
        int(word)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for word in task.read_text().split()
    ]


def alive(pid: int) -> bool:
    """Whether it runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def complaints(log: str) -> list[str]:
    """Lines of a broker's log that tell of a bug, each with what follows it."""
    lines = log.splitlines()
    found = [n for n, line in enumerate(lines) if any(word in line for word in _COMPLAINTS)]
    return ["\n".join(lines[n : n + 25]) for n in found[:3]]
