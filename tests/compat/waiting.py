"""Waiting for a condition, with a deadline instead of a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from compat.edge_case import AGAINST_KAFKA

DEADLINE_S = 120.0
PAUSE_S = 0.02


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(PAUSE_S)


def eventually(look: Callable[[], Any], wanted: Any) -> None:
    """That something is seen: at once here, in the end on Apache Kafka, which answers before every
    broker has heard of it.
    """
    if AGAINST_KAFKA:
        wait_until(lambda: look() == wanted, f"{wanted}")
    else:
        assert look() == wanted
