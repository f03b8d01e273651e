"""Wait for a condition, which tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], description: str, timeout_s: float = 30.0) -> None:
    """Return when the condition holds. Raise TimeoutError with the description if it does not."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s:.0f} s until {description}")
        time.sleep(0.01)
