"""Keeps real time and randomness out of a run.

Most of the broker takes both from its ports. The rest (measured slices of work, the unique part of
a directory's name, the time stamps of the log) would make two runs of one seed differ. Sleeping is
an error. The garbage collector is disabled: what it finds, and when, depends on everything that the
process has done before.
"""

from __future__ import annotations

import contextlib
import gc
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

from millstream.sim.world.clock import EPOCH_MS
from millstream.sim.world.entropy import SimEntropy
from millstream.sim.world.loop import Scheduler, SimulationError

cpu_s = time.process_time


@contextlib.contextmanager
def isolated(scheduler: Scheduler, seed: int | str) -> Iterator[None]:
    """Replace time and randomness for one run."""

    def now_s() -> float:
        loop = _running()
        return loop.time() if loop is not None else scheduler.now

    def no_sleep(seconds: float) -> None:
        raise SimulationError(f"time.sleep({seconds}) in a simulation")

    entropy = SimEntropy(f"{seed}/uuid")
    random.seed(f"{seed}/random")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with contextlib.ExitStack() as patches:
            for name, substitute in (
                ("perf_counter", now_s),
                ("monotonic", now_s),
                ("time", lambda: EPOCH_MS / 1000 + now_s()),
                ("time_ns", lambda: EPOCH_MS * 1_000_000 + int(now_s() * 1e9)),
                ("sleep", no_sleep),
            ):
                patches.enter_context(mock.patch.object(time, name, substitute))
            patches.enter_context(mock.patch.object(uuid, "uuid4", entropy.uuid))
            yield
    finally:
        scheduler.end()
        if was_enabled:
            gc.enable()


def _running() -> Any:
    from asyncio import _get_running_loop

    return _get_running_loop()
