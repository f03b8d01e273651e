"""Work that is done in steps, done at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


def finish(steps: Generator[Any, None, Any]) -> Any:
    """Carry out all steps and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
