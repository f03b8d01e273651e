"""One simulated world: a scheduler, a network, machines with clocks and disks, and a trace."""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from millstream.sim.world.clock import SimClock
from millstream.sim.world.disk import SimDisk
from millstream.sim.world.entropy import SimEntropy
from millstream.sim.world.loop import Scheduler, SimLoop, spawn
from millstream.sim.world.network import HostNetwork, SimNetwork


class Machine:
    """A host with a disk and a clock; processes on it come and go."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = SimDisk(world.dice_for(f"disk/{name}").getrandbits(32))
        self.clock_offset_ms = 0
        self.slowness = 1.0  # of its disk
        self.starts = 0

    def process(self) -> Process:
        self.starts += 1
        self.world.network.machine_started(self.name)
        return Process(self)


class Process:
    """The environment of a program on its machine, for as long as it runs."""

    def __init__(self, machine: Machine) -> None:
        world = machine.world
        self.machine = machine
        self.loop = SimLoop(world.scheduler, f"{machine.name}#{machine.starts}")  # type: ignore[abstract]
        self.loop.slowness = machine.slowness
        self.task: Any = None
        self.clock = SimClock(self.loop, machine.clock_offset_ms)
        self.network = HostNetwork(world.network, machine.name, self.loop)
        self.entropy = SimEntropy(f"{world.seed}/{self.loop.name}")

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> Any:
        return spawn(self.loop, work, name)

    def jump_clock(self, by_ms: int) -> None:
        self.machine.clock_offset_ms += by_ms
        self.clock.offset_ms = self.machine.clock_offset_ms


class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.network = SimNetwork(self.scheduler, f"{seed}/network")
        self.activity: Counter[str] = Counter()
        self.trace = trace
        self._machines: dict[str, Machine] = {}

    def dice_for(self, purpose: str) -> random.Random:
        """Return dice for one purpose: another draw from them changes nothing elsewhere."""
        return random.Random(f"{self.seed}/{purpose}")

    def machine(self, name: str) -> Machine:
        if name not in self._machines:
            self._machines[name] = Machine(self, name)
        return self._machines[name]

    def process(self, name: str) -> Process:
        return self.machine(name).process()

    def log(self, source: str, text: str) -> None:
        """Print a line of the trace."""
        if self.trace:
            print(f"{self.scheduler.now:10.6f} {source}: {text}", file=sys.stderr)


class TraceHandler(logging.Handler):
    """Prints the log lines of the brokers in the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        from asyncio import _get_running_loop

        loop: Any = _get_running_loop()
        source = loop.name if loop is not None else "-"
        text = self.format(record) if record.exc_info else record.getMessage()
        print(
            f"{self._world.scheduler.now:10.6f} {source}: {record.levelname} {text}",
            file=sys.stderr,
        )
