"""Restart a command in place, with a new JVM.

A broken JVM stays broken until it exits. A new JVM in the same Python process is not enough:
PySpark keeps Java objects in user functions and in its own modules. So the command replaces its
process with a fresh one (``execve``) with the same arguments, environment and process id. The flows
continue from their checkpoints, as after any crash.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, NoReturn

VARIABLE = "MILLSTREAM_DRIVER_RESTARTS"
"""Environment variable: the times of the restarts so far, in milliseconds, comma-separated."""
JVM_EXIT_S = 30.0

_environment: dict[str, str] | None = None


def allow() -> None:
    """Remember that this process belongs to the command, and its initial environment."""
    global _environment
    _environment = dict(os.environ)


def restarts_ms() -> tuple[int, ...] | None:
    """Return the times of the restarts so far, or None if the process cannot be replaced."""
    if _environment is None or not hasattr(os, "execve"):
        return None
    return tuple(
        int(part) for part in _environment.get(VARIABLE, "").split(",") if part.strip().isdigit()
    )


def was_restarted() -> bool:
    """Return whether an earlier process of this command ended with a restart."""
    return bool(restarts_ms())


def start_again(pause_ms: int) -> NoReturn:
    """End the JVM, wait, and replace this process with a fresh one."""
    assert _environment is not None
    before = restarts_ms() or ()
    end_jvm()
    time.sleep(pause_ms / 1000)
    times = (*before, int(time.time() * 1000))
    sys.stdout.flush()
    sys.stderr.flush()
    environment = _environment | {VARIABLE: ",".join(map(str, times))}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def end_jvm(timeout_s: float = JVM_EXIT_S) -> None:
    """End PySpark's JVM: SIGTERM lets it delete its temporary files, SIGKILL follows on timeout."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
