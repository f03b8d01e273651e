"""State that all faults of one run share: the brokers, which of them are busy, background work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from millstream.sim.broker import SimBroker
from millstream.sim.world.machines import World


class FaultRun:
    """One run of a nemesis. `over` is set when all faults end."""

    def __init__(self, world: World, brokers: Sequence[SimBroker], *, max_down: int = 1) -> None:
        self.world = world
        self.brokers = list(brokers)
        self.dice = world.dice_for("nemesis")
        self.busy: set[SimBroker] = set()  # being started or stopped by a fault
        self.over = asyncio.Event()
        self._max_down = max_down
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    def victim(self) -> SimBroker | None:
        """Return a running broker that may go down now, or None."""
        down = sum(1 for broker in self.brokers if not broker.running or broker in self.busy)
        free = [broker for broker in self.brokers if broker.running and broker not in self.busy]
        return self.dice.choice(free) if free and down < self._max_down else None

    def restart_later(self, broker: SimBroker, delay_s: float) -> None:
        """Start a broker again after a delay, in the background."""

        async def start() -> None:
            await asyncio.sleep(delay_s)
            while not broker.running:
                if await broker.start():
                    break
            self.busy.discard(broker)

        self.busy.add(broker)
        self.in_background(start())

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work beside the next faults."""
        self._tasks.append(self._loop.create_task(work))

    async def background_done(self) -> None:
        """Return when no background work is left. It may start more."""
        while self._tasks:
            tasks, self._tasks = self._tasks, []
            await asyncio.gather(*tasks)

    async def wait(self, seconds: float) -> None:
        """Wait, but no longer than the faults last."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            pass
