"""How fast replicas that are moved may be copied: a bound on bytes per second, measured over a few windows of time.

Only replicas that an operator has listed, and only while they are not in sync, are held back: a bound that is too low makes a move
last for ever, but never takes a healthy replica out of the ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

EVERYTHING = "*"


class ThrottledRate:
    """Bytes per second over the last windows; ``limit`` may change at any time."""

    def __init__(self, *, windows: int, window_ms: int) -> None:
        self.limit: float | None = None
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[list[int]] = deque()  # [start, bytes], oldest first

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
    """The partitions that ``partition:broker,...`` names for a broker; None where it is ``*``, all of them."""
    if EVERYTHING in texts:
        return None
    rows = (text.partition(":") for text in texts)
    return {int(index) for index, _, broker in rows if index.isdecimal() and broker == str(node)}
