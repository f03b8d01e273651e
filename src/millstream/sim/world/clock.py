"""A simulated clock: wall time that may jump, monotonic time that does not."""

from __future__ import annotations

from millstream.sim.world.loop import SimLoop

# Any day that is not zero.
EPOCH_MS = 1_750_000_000_000


class SimClock:
    """Implements `Clock` for one process. `offset_ms` is the machine's: it survives restarts."""

    def __init__(self, loop: SimLoop, offset_ms: int = 0) -> None:
        self._loop = loop
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.offset_ms

    def monotonic_s(self) -> float:
        return self._loop.time()
