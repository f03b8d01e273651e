"""The nemesis: injects faults into brokers, links, clocks, disks and clients, all from one seed.

It injects one fault after the other, with pauses. Links stay cut and disks stay full while other
faults happen. At the end everything is healed and every broker runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from millstream.sim.broker import SimBroker
from millstream.sim.clients.workload import Workload
from millstream.sim.faults.brokers import BrokerFaults
from millstream.sim.faults.clients import ClientFaults
from millstream.sim.faults.disks import DiskFaults
from millstream.sim.faults.links import LinkFaults
from millstream.sim.faults.power import PowerCuts
from millstream.sim.faults.shared import FaultRun
from millstream.sim.world.machines import World

# A run without any of these proves little.
_SIGNIFICANT = ("kill", "stop", "crash", "kill quickly", "expire", "isolate", "roll")


class Nemesis:
    """Acts on the brokers of a world. `actions` has every fault by its name."""

    def __init__(
        self,
        world: World,
        brokers: Sequence[SimBroker],
        workload: Workload,
        *,
        power: PowerCuts | None = None,
        only: Sequence[str] = (),
    ) -> None:
        """Create a nemesis. `only`: inject faults of these names and no others."""
        self._world = world
        run = self._run = FaultRun(world, brokers)
        self._brokers = BrokerFaults(run, power or PowerCuts())
        self._links = LinkFaults(run)
        disks, clients = DiskFaults(run), ClientFaults(run, workload)
        self.actions: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._brokers.kill,
            "stop": self._brokers.stop,
            "crash": self._brokers.crash,
            "kill quickly": self._brokers.kill_quickly,
            "pause": self._brokers.pause,
            "clock": self._brokers.jump_clock,
            "reset": self._links.reset,
            "cut": self._links.cut,
            "cut one way": self._links.cut_one_way,
            "slow": self._links.slow,
            "full disk": disks.full_disk,
            "bad disk": disks.bad_disk,
            "pause client": clients.pause_client,
        }
        self._only = list(only)
        for broker in run.brokers:
            broker.on_self_shutdown = self._brokers.revive

    async def run(self, seconds: float) -> None:
        """Inject faults for a while.

        Each run prefers some kinds, so that some schedules have many faults of one kind.
        """
        dice, scheduler = self._run.dice, self._world.scheduler
        until = scheduler.now + seconds
        preferred = self._only or self._choose()
        while scheduler.now < until:
            await asyncio.sleep(dice.expovariate(1 / 1.6))
            name = dice.choice(preferred)
            self._world.activity[f"nemesis {name}"] += 1
            await self.actions[name]()

    def _choose(self) -> list[str]:
        dice = self._run.dice
        chosen = dice.sample(sorted(self.actions), dice.randint(2, len(self.actions)))
        if not set(chosen) & set(_SIGNIFICANT):
            chosen.append(dice.choice([name for name in _SIGNIFICANT if name in self.actions]))
        return chosen

    async def heal(self) -> None:
        """End all faults, and start every broker."""
        run = self._run
        self._world.log("nemesis", "heals everything")
        run.over.set()
        self._world.network.heal()
        for broker in run.brokers:
            broker.repair_disk()
        await run.background_done()
        for broker in run.brokers:
            if broker.running and broker.has_offline_directory:
                broker.kill()
            if not broker.running:
                await broker.start()
