"""``python -m millstream.sim.run``: whole runs from seeds, each with its activity counted and every check made.

A failing seed prints the one command that replays it. A run in which too little happened does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from millstream.sim.checkers import Violation
from millstream.sim.cluster import Cluster, Replication
from millstream.sim.isolation import cpu_s, isolated
from millstream.sim.loop import SimulationError
from millstream.sim.single import Single
from millstream.sim.world import TraceHandler, World

_LIMIT_S = 600.0
SCENARIOS: dict[str, type[Single]] = {"single": Single, "cluster": Cluster, "replication": Replication}


class Result(NamedTuple):
    """What came of one seed."""

    seed: int
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
    """One run, from nothing to the checks. ``only``: these troubles and no others."""
    world = World(seed, trace=trace)
    result = _run(world, _scenario(scenario)(world, quick=quick, only=only))
    del world
    gc.collect()
    return result


def _run(world: World, plan: Single) -> Result:
    began = cpu_s()
    handler = TraceHandler(world) if world.trace else logging.NullHandler()
    logger = logging.getLogger("millstream")
    logger.addHandler(handler)
    propagated, logger.propagate = logger.propagate, False
    violations: list[Violation] = []
    errors: list[str] = []
    try:
        with isolated(world.scheduler, world.seed):
            main = world.process("main")
            task = main.start(plan.run(), "main")
            try:
                world.scheduler.run_until(task.done, _LIMIT_S)
                violations = task.result()
            except SimulationError as error:
                errors.append(str(error))
    finally:
        asyncio._set_running_loop(None)
        logger.removeHandler(handler)
        logger.propagate = propagated
    return Result(
        world.seed,
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
        raise SystemExit(f"no scenario is called {name}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def replay_command(seed: int, arguments: argparse.Namespace) -> str:
    """What shows this run again; ``make`` knows the usual ones."""
    if arguments.quick or arguments.only:
        options = ["--quick"] * arguments.quick + [f"--only '{kind}'" for kind in arguments.only]
        more = " ".join([f"--scenario {arguments.scenario}", *options])
        return f"python -m millstream.sim.run --seed {seed} {more} --trace"
    extra = "" if arguments.scenario == "single" else f" SCENARIO={arguments.scenario}"
    return f"make sim SEED={seed} TRACE=1{extra}"


def report(result: Result, arguments: argparse.Namespace) -> None:
    """What went wrong with a seed, and how to see it again."""
    print(f"seed {result.seed}: {len(result.violations)} violations, {len(result.errors)} errors")
    for violation in result.violations[:20]:
        print(f"  {violation}")
    for error in result.errors[:5]:
        print("  " + error.rstrip().replace("\n", "\n    "))
    print(f"  replay: {replay_command(result.seed, arguments)}", flush=True)


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    seeds = (
        [arguments.seed]
        if arguments.seed is not None
        else range(arguments.first, arguments.first + arguments.seeds)
    )
    total: Counter[str] = Counter()
    bad, thin = [], []
    simulated = cpu = 0.0
    events = 0
    for seed in seeds:
        result = run_seed(
            seed,
            scenario=arguments.scenario,
            trace=arguments.trace,
            quick=arguments.quick,
            only=arguments.only,
        )
        total += result.activity
        simulated, cpu, events = simulated + result.simulated_s, cpu + result.cpu_s, events + result.events
        if result.bad:
            bad.append(seed)
            report(result, arguments)
        elif result.too_little:
            thin.append(seed)
            print(f"seed {seed} does not count: too little of {', '.join(result.too_little)}")
        if arguments.seed is not None or arguments.verbose:
            print(f"seed {seed}: {result.simulated_s:.1f} s simulated in {result.cpu_s:.1f} s of CPU, {result.events} events,"
                  f" fingerprint {result.fingerprint:08x}, {dict(sorted(result.activity.items()))}", flush=True)  # fmt: skip
    print(f"activity: {dict(sorted(total.items()))}")
    print(
        f"{len(list(seeds))} seeds, {len(bad)} bad, {len(thin)} with too little activity; {simulated:.0f} s simulated in {cpu:.0f} s of CPU"
        f" ({simulated / max(cpu, 1e-9):.0f} x), {events / max(cpu, 1e-9):.0f} events/s"
    )
    if bad:
        print("bad seeds: " + ", ".join(map(str, bad)))
    return 1 if bad else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millstream.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--scenario", default="single")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument(
        "--only", action="append", default=[], help="this kind of trouble; may be given again"
    )
    parser.add_argument("--trace", action="store_true", help="tell everything that happens, on stderr")
    parser.add_argument("--verbose", action="store_true", help="a line for every seed")
    return parser.parse_args(argv)


def pinned() -> bool:
    """Whether strings hash the same in every process; else it starts itself again."""
    return os.environ.get("PYTHONHASHSEED") == "0"


if __name__ == "__main__":
    if not pinned():
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "millstream.sim.run", *sys.argv[1:]])
    sys.exit(main())
