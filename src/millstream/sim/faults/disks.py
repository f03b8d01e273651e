"""Faults of disks: no space for a while, or errors of the device."""

from __future__ import annotations

import random

from millstream.sim.broker import SimBroker
from millstream.sim.faults.shared import FaultRun
from millstream.sim.world.disk import io_error, no_space


class DiskFaults:
    """Each public method is one fault of the disk of one broker."""

    def __init__(self, run: FaultRun) -> None:
        self._run = run
        self._dice = run.dice

    async def full_disk(self) -> None:
        """Fill the disk for a while; the broker stays up."""
        broker = self._dice.choice(self._run.brokers)
        if broker.disk_is_healthy:
            seconds = self._dice.choice((0.2, 2.0, 10.0)) * self._dice.random()
            # A nearly full disk still takes small writes: of two writes that belong together, one
            # may fail.
            dice = random.Random(self._dice.random()) if self._dice.random() < 0.5 else None
            broker.break_disk(no_space, ("append", "write", "create", "makedirs"), dice=dice)
            self._run.in_background(self._repair(broker, seconds))

    async def bad_disk(self) -> None:
        """Let the device fail.

        The broker takes the directory offline, and shuts down if it was its last one.
        """
        broker = self._run.victim()
        if broker is not None and broker.disk_is_healthy:
            failing = self._dice.choice(
                (("append",), ("sync",), ("append", "write", "sync", "rename"))
            )
            below = self._dice.choice(("/", f"{self._dice.choice(broker.directories)}/"))
            broker.break_disk(io_error, failing, below)
            self._run.in_background(self._replace(broker, self._dice.uniform(0.1, 3.0)))

    async def _repair(self, broker: SimBroker, seconds: float) -> None:
        await self._run.wait(seconds)
        broker.repair_disk()

    async def _replace(self, broker: SimBroker, seconds: float) -> None:
        """Repair the disk. An offline directory returns to service with the next start."""
        run = self._run
        await self._repair(broker, seconds)
        await run.wait(self._dice.uniform(0.0, 6.0))
        if (
            len(broker.directories) > 1
            and broker.running
            and broker not in run.busy
            and run.victim()
        ):
            broker.kill()
            run.restart_later(broker, self._dice.uniform(0.0, 2.0))
