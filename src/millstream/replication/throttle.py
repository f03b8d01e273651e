"""Replication throttle: a limit in bytes per second, measured over a few time windows.

It applies only to replicas that an operator has listed, and only while they are out of sync. A
limit that is too low makes a reassignment last forever, but never removes a healthy replica from
the ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

ALL_REPLICAS = "*"


class ThrottledRate:
    """The rate in bytes per second over the last windows; ``limit`` may change at any time."""

    def __init__(self, *, windows: int, window_ms: int) -> None:
        self.limit: float | None = None
        self._windows = windows
        self._window_ms = window_ms
        # [start, bytes], oldest first.
        self._samples: deque[list[int]] = deque()

    def record(self, size: int, now_ms: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= self._window_ms:
            self._samples.append([now_ms, 0])
        self._samples[-1][1] += size

    def rate(self, now_ms: int) -> float:
        while self._samples and now_ms - self._samples[0][0] >= self._windows * self._window_ms:
            self._samples.popleft()
        if not self._samples:
            return 0.0
        elapsed_ms = max(now_ms - self._samples[0][0], self._window_ms)
        return sum(size for _, size in self._samples) * 1000 / elapsed_ms

    def exceeded(self, now_ms: int) -> bool:
        return self.limit is not None and self.rate(now_ms) > self.limit


def throttled_partitions(texts: Sequence[str], node: int) -> Collection[int] | None:
    """Return the partitions that ``partition:broker,...`` lists for a broker; None means all
    (``*``).
    """
    if ALL_REPLICAS in texts:
        return None
    rows = (text.partition(":") for text in texts)
    return {int(index) for index, _, broker in rows if index.isdecimal() and broker == str(node)}
