"""A broker whose turns of the event loop are timed, in CPU time of the loop's thread."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import psutil

from millstream.local.broker import LocalBroker
from support.processes import wait_until

_ROOT = Path(__file__).resolve().parents[2]


class Busiest(NamedTuple):
    """The callback and the turn that took the most CPU time since the last ``forget``."""

    callback_ms: float
    turn_ms: float
    callback: str


class TimedBroker(LocalBroker):
    """Runs in ``bench.timed_loop``, on asyncio's own loop."""

    def command(self) -> list[str]:
        python, *words = super().command()
        return [python, "-m", "bench.timed_loop", str(self._report), *words[1:]]

    def environment(self) -> dict[str, str]:
        environment = super().environment()
        path = f"{environment['PYTHONPATH']}{os.pathsep}{_ROOT}"
        return environment | {"MILLSTREAM_LOOP": "asyncio", "PYTHONPATH": path}

    @property
    def _report(self) -> Path:
        return self.directory / "turns.json"

    def busiest(self) -> Busiest:
        """Since ``forget``."""
        before = self._read().get("written", 0)
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(lambda: self._read().get("written", 0) > before, "the report of the loop")
        report = self._read()
        return Busiest(report["callback_cpu_ms"], report["turn_cpu_ms"], report["busiest"])

    def forget(self) -> None:
        """Begin to measure. Returns when the signal was taken: the next report knows of nothing
        before.
        """
        os.kill(self.pid, signal.SIGUSR2)
        self.busiest()

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def _read(self) -> dict[str, float]:  # and one text
        try:
            found: dict[str, float] = json.loads(self._report.read_text())
        except (OSError, ValueError):
            return {}
        return found
