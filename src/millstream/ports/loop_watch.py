"""Detection of a stuck event loop, from another thread.

A loop is stuck if it could have run for a whole timeout but made no iteration: one callback
computes, or waits in a system call. Time in which the loop's thread waits for a CPU does not count:
the loop is then starved by other processes, not stuck. Time in which the watching thread did not
run does not count either, as when a suspended process continues.
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
    """Create it on the loop's thread; call ``is_stuck`` periodically from one other thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        starved_s: Callable[[], float] | None = None,
    ) -> None:
        """``starved_s`` returns the total time that the loop's thread has waited for a CPU."""
        self._loop = loop
        self._timeout_s = timeout_s
        self._now = now
        self._starved_s = starved_s or starvation_of_this_thread()
        self._thread = threading.get_ident()
        self._has_run = True
        self._stuck_s = 0.0
        self._checked_at = self._starved_at_check = 0.0

    def is_stuck(self) -> bool:
        """Return whether the loop has not run for the timeout.

        Schedules a callback on the loop, which the next call checks.
        """
        if self._loop.is_closed():
            return False
        now, starved = self._now(), self._starved_s()
        if self._has_run:
            self._has_run, self._stuck_s = False, 0.0
            try:
                self._loop.call_soon_threadsafe(self._on_run)
            except RuntimeError:
                pass  # the loop was just closed
        else:
            # Callers check twice per timeout. In a longer gap this process did not run.
            elapsed = min(now - self._checked_at, self._timeout_s / 2)
            self._stuck_s += max(elapsed - (starved - self._starved_at_check), 0.0)
        self._checked_at, self._starved_at_check = now, starved
        return self._stuck_s >= self._timeout_s

    def _on_run(self) -> None:
        self._has_run = True

    def where(self) -> str:
        """Return the innermost frames of the loop's thread, as text."""
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""


def starvation_of_this_thread() -> Callable[[], float]:
    """Return a function that any thread may call: how long this thread has waited for a CPU."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    started = time.monotonic()

    def from_schedstat() -> float:
        return int(path.read_text(encoding="ascii").split()[1]) / 1e9

    def from_cpu_time() -> float:
        # Without schedstat, all time that is not CPU time counts as starved.
        return time.monotonic() - started - time.clock_gettime(clock)

    try:
        from_schedstat()
        return from_schedstat
    except (OSError, ValueError, IndexError):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return from_cpu_time
