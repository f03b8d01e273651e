"""A clock for test brokers that can be set forward."""

from __future__ import annotations

from millstream.ports.clock import SystemClock


class TravellingClock(SystemClock):
    """The machine's clock plus an offset. Waits use monotonic time, which does not jump."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms
