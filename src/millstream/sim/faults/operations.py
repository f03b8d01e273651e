"""Operators who act at bad times.

They roll the cluster, elect leaders, reassign partitions, and add and remove brokers.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.sim.broker import SimBroker
from millstream.sim.clients.operator import Operator
from millstream.sim.faults.shared import FaultRun
from millstream.sim.world.zookeeper import SimZooKeeper


class Operations:
    """Each public method is one action. Brokers in `spare` may join, and return there."""

    def __init__(
        self, run: FaultRun, operator: Operator, zookeeper: SimZooKeeper, spare: Sequence[SimBroker]
    ) -> None:
        self._run = run
        self._operator = operator
        self._zookeeper = zookeeper
        self._spare = list(spare)

    async def roll(self) -> None:
        """Restart one broker after the other, with clean shutdowns."""
        run, dice = self._run, self._run.dice
        for broker in list(run.brokers):
            if (
                run.over.is_set()
                or run.victim() is None
                or not broker.running
                or broker in run.busy
            ):
                return
            run.busy.add(broker)
            await broker.stop()
            if not broker.running:
                await broker.start()
            run.busy.discard(broker)
            await run.wait(dice.choice((0.1, 2.0)) * dice.random())

    async def elect(self) -> None:
        """Move leadership back to the preferred replicas."""
        self._run.in_background(self._operator.elect_preferred())

    async def reassign(self) -> None:
        """Reassign some partitions to other brokers, or cancel a reassignment."""
        nodes = [broker.node_id for broker in self._run.brokers]
        self._run.in_background(self._operator.reassign(self._run.dice, nodes))

    async def add_broker(self) -> None:
        """Add an empty broker, and give it some of the partitions."""
        run = self._run
        if self._spare:
            broker = self._spare.pop()
            run.brokers.append(broker)
            run.world.activity["brokers added"] += 1
            run.busy.add(broker)
            if not broker.running:
                await broker.start()
            run.busy.discard(broker)
            await self.reassign()

    async def remove_broker(self) -> None:
        """Take the partitions of the newest broker away, then shut it down for good.

        A fault may prevent either step.
        """
        run = self._run
        if len(run.brokers) > self._operator.replication and not run.busy:
            broker = run.brokers[-1]
            others = [other.node_id for other in run.brokers if other is not broker]
            run.in_background(self._remove(broker, others))

    async def _remove(self, broker: SimBroker, others: list[int]) -> None:
        run = self._run
        if not await self._operator.drain(broker.node_id, others, until=run.over):
            return
        if broker.running and broker not in run.busy and broker in run.brokers:
            run.busy.add(broker)
            await broker.stop()
            run.busy.discard(broker)
            if not broker.running and self._operator.hosts_nothing(broker.node_id, self._zookeeper):
                run.world.activity["brokers removed"] += 1
                run.brokers.remove(broker)
                self._spare.append(broker)
            else:
                run.restart_later(broker, 0.5)

    async def start_spare_with_partitions(self) -> None:
        """Start spare brokers that host partitions.

        A reassignment to one may have been accepted while it was removed.
        """
        for broker in self._spare:
            if broker.running or self._operator.hosts_nothing(broker.node_id, self._zookeeper):
                continue
            await broker.start()
