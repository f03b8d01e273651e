"""Waiting for something to become true, which is what a test does instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    """Return when the condition holds; TimeoutError, which says what was waited for, when it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s:.0f} s until {what}")
        time.sleep(0.01)
