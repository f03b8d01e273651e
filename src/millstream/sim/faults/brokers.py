"""Faults of brokers: killed, stopped, crashed, paused, or with a clock that jumps."""

from __future__ import annotations

import asyncio

from millstream.sim.broker import SimBroker
from millstream.sim.faults.power import PowerCuts
from millstream.sim.faults.shared import FaultRun

# Less than an hour, because a record's timestamp may not be further ahead.
_MAX_CLOCK_OFFSET_MS = 25 * 60_000


class BrokerFaults:
    """Each method is one fault of one broker; most start it again later."""

    def __init__(self, run: FaultRun, power: PowerCuts) -> None:
        self._run = run
        self._power = power
        self._dice = run.dice

    async def kill(self) -> None:
        if broker := self._run.victim():
            broker.kill()
            self._run.restart_later(broker, self._dice.uniform(0.0, 6.0))

    async def crash(self) -> None:
        if (broker := self._run.victim()) and self._power.allowed(broker):
            self._power.crash(broker)
            self._run.restart_later(broker, self._dice.uniform(0.1, 8.0))

    async def blackout(self) -> None:
        """Cut the power of all brokers at once."""
        for broker in self._run.brokers:
            if broker.running and broker not in self._run.busy:
                self._power.crash(broker)
                self._run.restart_later(broker, self._dice.uniform(0.1, 8.0))

    async def kill_quickly(self) -> None:
        """Kill a broker again soon after its start: while it loads, or has just begun to serve."""
        if broker := self._run.victim():
            self._run.busy.add(broker)
            for _ in range(self._dice.randint(1, 3)):
                if self._dice.random() < 0.5 and self._power.allowed(broker):
                    self._power.crash(broker)
                else:
                    broker.kill()
                starting = asyncio.get_running_loop().create_task(broker.start())
                await asyncio.sleep(
                    self._dice.choice((0.0005, 0.002, 0.05, 0.5)) * self._dice.random()
                )
                if not broker.running:
                    await starting
                    break
                if self._dice.random() < 0.3:
                    break
            if broker.running:
                await starting
            self._run.busy.discard(broker)
            if not broker.running:
                self._run.restart_later(broker, 0.5)

    async def stop(self) -> None:
        if broker := self._run.victim():
            self._run.busy.add(broker)
            await broker.stop()
            self._run.restart_later(broker, self._dice.uniform(0.0, 4.0))

    async def pause(self) -> None:
        if broker := self._run.victim():
            broker.pause(self._dice.choice((0.5, 3.0, 12.0)) * self._dice.random())

    async def jump_clock(self) -> None:
        broker = self._dice.choice(self._run.brokers)
        if broker.running:
            target = self._dice.randint(-_MAX_CLOCK_OFFSET_MS, _MAX_CLOCK_OFFSET_MS)
            broker.jump_clock(target - broker.machine.clock_offset_ms)

    def revive(self, broker: SimBroker) -> None:
        """Repair the disk of a broker that shut itself down, and start it again."""

        async def start() -> None:
            await self._run.wait(self._dice.uniform(0.5, 5.0))
            broker.repair_disk()
            while not broker.running and not await broker.start():
                pass
            self._run.busy.discard(broker)

        self._run.busy.add(broker)
        self._run.in_background(start())
