"""Start a command again in place of itself, with a new JVM.

A JVM that is broken stays broken until it ends. A new one in the same Python process is not enough:
PySpark keeps Java objects in functions of the user and in its own modules. So the command replaces its
process by a fresh one (``execve``) with the same arguments, environment and process id. What was
written before stays written: the flows go on from their checkpoints as after any other crash.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, NoReturn

VARIABLE = "MILLSTREAM_DRIVER_RESTARTS"
"""Environment variable: the times of the restarts so far, in milliseconds, with commas between them."""
JVM_EXIT_S = 30.0

_environment: dict[str, str] | None = None


def allow() -> None:
    """Note that this process is the command's own, and what its environment was at the beginning."""
    global _environment
    _environment = dict(os.environ)


def restarts_ms() -> tuple[int, ...] | None:
    """Return the times of the restarts so far, or None if the process cannot be replaced."""
    if _environment is None or not hasattr(os, "execve"):
        return None
    return tuple(int(part) for part in _environment.get(VARIABLE, "").split(",") if part.strip().isdigit())


def was_restarted() -> bool:
    """Return whether an earlier process of this command ended with a restart."""
    return bool(restarts_ms())


def start_again(pause_ms: int) -> NoReturn:
    """End the JVM, wait, and replace this process by a fresh one."""
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
    """End the JVM of PySpark: SIGTERM lets it delete its temporary files, SIGKILL follows after a time."""
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
