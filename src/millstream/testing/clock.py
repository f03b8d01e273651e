"""A clock that can be set forward: what a broker in a test takes for the present."""

from __future__ import annotations

from millstream.ports.clock import SystemClock


class TravellingClock(SystemClock):
    """The machine's clock and as much as it was set forward. Waits go by monotonic time, which does not jump."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms
