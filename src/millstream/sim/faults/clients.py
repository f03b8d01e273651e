"""Faults of clients."""

from __future__ import annotations

from millstream.sim.clients.workload import Workload
from millstream.sim.faults.shared import FaultRun


class ClientFaults:
    """Faults of the clients of a workload."""

    def __init__(self, run: FaultRun, workload: Workload) -> None:
        self._run = run
        self._workload = workload

    async def pause_client(self) -> None:
        dice = self._run.dice
        client = dice.choice(self._workload.clients)
        client.loop.pause(dice.choice((0.5, 5.0, 15.0)) * dice.random())
        self._run.world.activity["clients paused"] += 1
