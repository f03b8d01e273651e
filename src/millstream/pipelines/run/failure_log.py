"""The failures of a pipeline's flows with their traces, in a file beside its checkpoints.

Tables and events show one line of each failure (``failures.explain``). Finding the cause may need
the whole trace, also after the run.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path

MAX_BYTES = 1_000_000
"""A larger file is renamed, and replaces the one that was renamed before."""


def log_failure(path: Path, flow: str, error: BaseException) -> None:
    """Append a failure with its traces. An unwritable log must not end the run."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f"{moment} flow {flow}\n{_trace(error)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
        with path.open("a", encoding="utf-8", errors="replace") as log:
            log.write(text)
    except OSError:
        return


def _trace(error: BaseException) -> str:
    """Return Python's trace, and Java's if PySpark keeps it apart from the message."""
    try:
        text = "".join(traceback.format_exception(error))
    # PySpark fetches the message from the JVM, which may have exited.
    except Exception as second:
        text = f"{type(error).__name__} (its message cannot be read: {type(second).__name__})\n"
    java = getattr(error, "_stackTrace", None)
    return f"{text}{java}\n" if isinstance(java, str) and java not in text else text
