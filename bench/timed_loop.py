"""Run a Python program and time every callback of its asyncio loop.

`python -m bench.timed_loop REPORT MODULE [ARGUMENT ...]` runs MODULE as `python -m MODULE ARGUMENT
...` would. SIGUSR1 writes the slowest callbacks to REPORT (JSON), and so does the exit. SIGUSR2
drops all measurements so far. An alarm five milliseconds into a callback stores the line that is
running, to locate slow ones. This works with asyncio's own loop only: uvloop runs callbacks in C,
which cannot be patched.
"""

import asyncio
import atexit
import json
import os
import runpy
import signal
import sys
import time
from asyncio import events
from heapq import heappushpop
from pathlib import Path
from types import FrameType
from typing import Any

STANDARD_LIBRARY = Path(os.__file__).parent
KEEP = 20  # slowest callbacks in the report
ALARM_S = 0.005
FRAMES = 3  # innermost frames of the program in the report


class Watch:
    """Wall and CPU seconds of callbacks: wall time includes cores taken by other programs."""

    def __init__(self, report: Path) -> None:
        self.report = report
        self.written = 0
        self.reset()

    def reset(self) -> None:
        self.count, self.busy_s = 0, 0.0
        self.line = ""
        self.turn_cpu_s = 0.0
        self.busiest: tuple[float, str, str] = (0.0, "", "")
        self.slowest: list[tuple[float, int, float, str, str]] = [
            (0.0, -i, 0.0, "", "") for i in range(KEEP)
        ]

    def record(self, wall_s: float, cpu_s: float, callback: Any) -> None:
        self.count += 1
        self.busy_s += wall_s
        if cpu_s > self.busiest[0]:
            self.busiest = cpu_s, name_of(callback), self.line
        if wall_s > self.slowest[0][0]:
            heappushpop(self.slowest, (wall_s, self.count, cpu_s, name_of(callback), self.line))
        self.line = ""

    def record_turn(self, cpu_s: float) -> None:
        """Record a turn of the loop: all callbacks that were ready at once."""
        if cpu_s > self.turn_cpu_s:
            self.turn_cpu_s = cpu_s

    def alarm(self, _signal: int, frame: FrameType | None) -> None:
        self.line = where(frame)

    def write(self) -> None:
        self.written += 1
        slowest = [
            {"wall_ms": wall * 1000, "cpu_ms": cpu * 1000, "callback": name, "line": line}
            for wall, _, cpu, name, line in sorted(self.slowest, reverse=True)
            if name
        ]
        report = {
            "written": self.written,
            "callbacks": self.count,
            "busy_s": self.busy_s,
            "turn_cpu_ms": self.turn_cpu_s * 1000,
            "callback_cpu_ms": self.busiest[0] * 1000,
            "busiest": f"{self.busiest[1]} at {self.busiest[2]}",
            "slowest": slowest,
        }
        temporary = self.report.with_suffix(".tmp")
        temporary.write_text(json.dumps(report))
        os.replace(temporary, self.report)


def where(frame: FrameType | None) -> str:
    """Return the innermost lines outside of the standard library, as `file:line < caller:line`."""
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES:
        path = Path(frame.f_code.co_filename)
        foreign = STANDARD_LIBRARY in path.parents and "site-packages" not in path.parts
        if not foreign and not path.name.startswith("<") and path.name != Path(__file__).name:
            lines.append(f"{path.parent.name}/{path.name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


def name_of(callback: Any) -> str:
    """Return the name of the coroutine instead of `Task.__step`, and of a method with its class."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coro = owner.get_coro()
        return f"task {getattr(coro, '__qualname__', repr(coro))}"
    name = getattr(callback, "__qualname__", None) or repr(callback)
    return f"{getattr(callback, '__module__', '')}.{name}"


def install(watch: Watch) -> None:
    original, wall, cpu = events.Handle._run, time.perf_counter, time.thread_time
    set_alarm, real = signal.setitimer, signal.ITIMER_REAL

    def timed(self: Any) -> None:
        callback = self._callback  # gone after a cancelled run
        set_alarm(real, ALARM_S)
        cpu_before, before = cpu(), wall()
        original(self)
        elapsed = wall() - before
        watch.record(elapsed, cpu() - cpu_before, callback)
        set_alarm(real, 0)

    events.Handle._run = timed  # type: ignore[method-assign]
    turn = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def timed_turn(self: Any) -> None:
        before = cpu()
        turn(self)
        watch.record_turn(cpu() - before)

    asyncio.BaseEventLoop._run_once = timed_turn  # type: ignore[attr-defined]


def main() -> None:
    report, module = Path(sys.argv[1]), sys.argv[2]
    watch = Watch(report)
    install(watch)
    signal.signal(signal.SIGALRM, watch.alarm)
    signal.signal(signal.SIGUSR1, lambda *_: watch.write())
    signal.signal(signal.SIGUSR2, lambda *_: watch.reset())
    atexit.register(watch.write)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
