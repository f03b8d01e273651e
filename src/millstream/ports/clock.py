"""The clock port: wall-clock time for records and retention, monotonic time for waits."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. The simulation has another implementation."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic_s(self) -> float:
        """Seconds that never jump."""


def steady_ms(clock: Clock) -> int:
    """Return monotonic milliseconds, for durations: the wall clock may be set back or forward."""
    return int(clock.monotonic_s() * 1000)


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
