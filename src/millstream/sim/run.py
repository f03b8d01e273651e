"""``python -m millstream.sim.run``: whole runs from seeds, with all checks.

A failing seed prints the command that replays it. A run with too little activity does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.observe import truncations_counted
from millstream.sim.cluster import Cluster, Replication
from millstream.sim.single import Single
from millstream.sim.world.isolation import cpu_s, isolated
from millstream.sim.world.loop import SimulationError
from millstream.sim.world.machines import TraceHandler, World

_LIMIT_S = 600.0
SCENARIOS: dict[str, type[Single]] = {
    "single": Single,
    "cluster": Cluster,
    "replication": Replication,
}
# The scenarios of successive seeds; transactions are the most fragile.
MIXED = ("cluster", "replication", "cluster")
_PROGRESS_S = 20.0
_ERROR_LINES = 60
_SEEDS_PER_PROCESS = 100


class Result(NamedTuple):
    """The result of one seed."""

    seed: int
    scenario: str
    violations: list[Violation]
    errors: list[str]
    too_little: list[str]
    activity: Counter[str]
    simulated_s: float
    events: int
    cpu_s: float
    fingerprint: int

    @property
    def bad(self) -> bool:
        return bool(self.violations or self.errors)


def run_seed(
    seed: int,
    *,
    scenario: str = "single",
    trace: bool = False,
    quick: bool = False,
    only: Sequence[str] = (),
) -> Result:
    """Run one seed. `only`: inject faults of these kinds and no others."""
    world = World(seed, trace=trace)
    name = MIXED[seed % len(MIXED)] if scenario == "mixed" else scenario
    result = _run(world, name, _scenario(name)(world, quick=quick, only=only))
    del world
    gc.collect()
    return result


def _run(world: World, scenario: str, plan: Single) -> Result:
    began = cpu_s()
    handler = TraceHandler(world) if world.trace else logging.NullHandler()
    logger = logging.getLogger("millstream")
    logger.addHandler(handler)
    propagated, logger.propagate = logger.propagate, False
    violations: list[Violation] = []
    errors: list[str] = []
    try:
        with isolated(world.scheduler, world.seed), truncations_counted(world.activity):
            main = world.process("main")
            task = main.start(plan.run(), "main")
            try:
                world.scheduler.run_until(task.done, _LIMIT_S)
                violations = task.result()
            except SimulationError as error:
                errors.append(str(error))
            except Exception:  # of this seed: the others continue
                errors.append(traceback.format_exc())
    finally:
        asyncio._set_running_loop(None)
        logger.removeHandler(handler)
        logger.propagate = propagated
    return Result(
        world.seed,
        scenario,
        violations,
        errors + world.scheduler.errors,
        plan.too_little(),
        world.activity,
        world.scheduler.now,
        world.scheduler.events,
        cpu_s() - began,
        world.scheduler.fingerprint,
    )


def _scenario(name: str) -> type[Single]:
    if name not in SCENARIOS:
        raise SystemExit(f"unknown scenario '{name}'; choose from {', '.join(SCENARIOS)} and mixed")
    return SCENARIOS[name]


def replay_command(result: Result, arguments: argparse.Namespace) -> str:
    """Return the command that replays a run. ``make`` covers the common options."""
    if arguments.quick or arguments.only:
        options = ["--quick"] * arguments.quick + [f"--only '{kind}'" for kind in arguments.only]
        more = " ".join([f"--scenario {result.scenario}", *options])
        return f"python -m millstream.sim.run --seed {result.seed} {more} --trace"
    extra = "" if result.scenario == "single" else f" SCENARIO={result.scenario}"
    return f"make sim SEED={result.seed} TRACE=1{extra}"


def report(result: Result, arguments: argparse.Namespace) -> None:
    """Print what went wrong with a seed, and how to replay it."""
    print(f"seed {result.seed}: {len(result.violations)} violations, {len(result.errors)} errors")
    for violation in result.violations[:20]:
        print(f"  {violation}")
    for error in result.errors[:5]:
        lines = error.rstrip().splitlines()
        print("\n    ".join(["  " + lines[0], *lines[1:_ERROR_LINES]]))
    print(f"  replay: {replay_command(result, arguments)}", flush=True)


class Totals:
    """The sums over all seeds."""

    def __init__(self) -> None:
        self.activity: Counter[str] = Counter()
        self.seeds = 0
        self.bad: list[int] = []
        self.thin: list[int] = []
        self.simulated_s = self.cpu_s = 0.0
        self.events = 0

    def add(self, result: Result) -> None:
        """Add a result.

        A seed with too little activity does not count, unless it found something.
        """
        self.seeds += 1
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        self.events += result.events
        if result.bad:
            self.bad.append(result.seed)
        elif result.too_little:
            self.thin.append(result.seed)
            return
        self.activity += result.activity

    @property
    def counted(self) -> int:
        return self.seeds - len(self.thin)

    def progress(self, total: int) -> str:
        activity = ", ".join(
            f"{self.activity[name]} {name}"
            for name in ("send ok", "elections", "isr changes", "truncations")
        )
        seeds = f"{self.seeds} of {total} seeds, {len(self.bad)} bad, {len(self.thin)} too thin"
        return f"{seeds}; {activity}"

    def summary(self) -> str:
        cpu_s = max(self.cpu_s, 1e-9)
        return (
            f"{self.seeds} seeds, {len(self.bad)} bad, {len(self.thin)} with too little activity,"
            f" {self.counted} count; {self.simulated_s:.0f} s simulated in {self.cpu_s:.0f} s of CPU"
            f" ({self.simulated_s / cpu_s:.0f} x), {self.events / cpu_s:.0f} events/s"
        )


def results(seeds: Sequence[int], arguments: argparse.Namespace) -> Iterator[Result]:
    """Run the seeds, in this process or in several."""
    run = partial(
        run_seed,
        scenario=arguments.scenario,
        trace=arguments.trace,
        quick=arguments.quick,
        only=tuple(arguments.only),
    )
    if arguments.jobs <= 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    context = multiprocessing.get_context("spawn")
    # Processes are replaced after many seeds, so that nothing accumulates. Pools that do it
    # themselves hang (max_tasks_per_child, https://github.com/python/cpython/issues/115634).
    at_once = arguments.jobs * _SEEDS_PER_PROCESS
    for first in range(0, len(seeds), at_once):
        with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
            yield from pool.map(run, seeds[first : first + at_once])


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    seeds = (
        [arguments.seed]
        if arguments.seed is not None
        else range(arguments.first, arguments.first + arguments.seeds)
    )
    totals = Totals()
    printed_at = time.monotonic()
    for result in results(seeds, arguments):
        totals.add(result)
        if result.bad:
            report(result, arguments)
        elif result.too_little:
            print(
                f"seed {result.seed} does not count: too little of {', '.join(result.too_little)}"
            )
        if arguments.seed is not None or arguments.verbose:
            print(
                f"seed {result.seed} ({result.scenario}): {result.simulated_s:.1f} s simulated in"
                f" {result.cpu_s:.1f} s of CPU, {result.events} events,"
                f" fingerprint {result.fingerprint:08x}, {dict(sorted(result.activity.items()))}",
                flush=True,
            )
        if time.monotonic() - printed_at >= _PROGRESS_S:
            printed_at = time.monotonic()
            print(totals.progress(len(seeds)), flush=True)
    print(f"activity: {dict(sorted(totals.activity.items()))}")
    print(totals.summary())
    if totals.bad:
        print("bad seeds: " + ", ".join(map(str, totals.bad)))
    return 1 if totals.bad else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millstream.sim.run", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=100, help="number of seeds, starting with --first"
    )
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--scenario", default="single", help="single, replication, cluster, or mixed"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument(
        "--only", action="append", default=[], help="inject only this kind of fault; repeatable"
    )
    parser.add_argument("--trace", action="store_true", help="print every step on stderr")
    parser.add_argument("--verbose", action="store_true", help="print a line for every seed")
    return parser.parse_args(argv)


def pinned() -> bool:
    """Return whether strings hash the same in every process. Otherwise it restarts itself."""
    return os.environ.get("PYTHONHASHSEED") == "0"


if __name__ == "__main__":
    # Workers would outlive a process that just ends. It shuts the pool down, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if not pinned():
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "millstream.sim.run", *sys.argv[1:]])
    sys.exit(main())
