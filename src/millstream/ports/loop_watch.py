"""Whether an event loop is stuck, as seen from another thread.

A loop is stuck when it has not turned for a whole timeout although it could have: one callback computes, or waits in a
system call. A loop whose thread waits for a processor is not stuck, it is starved by its neighbours: that time does not
count. Neither does the time in which the watching thread did not run itself, as after a suspended process continues.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path


class LoopWatch:
    """Made on the loop's own thread; ``is_stuck`` is asked again and again from one other thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        starved_s: Callable[[], float] | None = None,
    ) -> None:
        """``starved_s``: for how long the thread of the loop has waited for a processor, in all."""
        self._loop = loop
        self._timeout_s = timeout_s
        self._now = now
        self._starved_s = starved_s or starvation_of_this_thread()
        self._thread = threading.get_ident()
        self._turned = True
        self._stuck_s = 0.0
        self._looked_at = self._starved_then = 0.0

    def is_stuck(self) -> bool:
        """Whether the loop has not turned for the timeout. Asks it for a sign of life, which the next call looks for."""
        if self._loop.is_closed():
            return False
        now, starved = self._now(), self._starved_s()
        if self._turned:
            self._turned, self._stuck_s = False, 0.0
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:
                pass  # closed just now
        else:
            # Whoever looks does so twice in a timeout. A longer gap is time in which this process did not run.
            elapsed = min(now - self._looked_at, self._timeout_s / 2)
            self._stuck_s += max(elapsed - (starved - self._starved_then), 0.0)
        self._looked_at, self._starved_then = now, starved
        return self._stuck_s >= self._timeout_s

    def _turn(self) -> None:
        self._turned = True

    def where(self) -> str:
        """The innermost lines of what the loop is doing."""
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""


def starvation_of_this_thread() -> Callable[[], float]:
    """How long the calling thread has waited for a processor, to be asked from any thread."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    started = time.monotonic()

    def by_the_kernel() -> float:
        return int(path.read_text(encoding="ascii").split()[1]) / 1e9

    def by_the_processor() -> float:
        # Where the kernel keeps no account, only a loop that computes is known not to be starved.
        return time.monotonic() - started - time.clock_gettime(clock)

    try:
        by_the_kernel()
        return by_the_kernel
    except (OSError, ValueError, IndexError):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return by_the_processor
