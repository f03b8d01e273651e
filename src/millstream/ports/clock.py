"""The clock, as a port: wall time for records and retention, monotonic time for waits."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from; the simulation has its own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic_s(self) -> float:
        """Seconds that never jump."""


def steady_ms(clock: Clock) -> int:
    """Milliseconds that never jump: for how long something lasts, where the clock on the wall may be set back or ahead meanwhile."""
    return int(clock.monotonic_s() * 1000)


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
