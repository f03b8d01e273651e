"""The nemesis of a cluster: also cuts brokers off from each other and from ZooKeeper.

And it acts like operators at bad times.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.sim.broker import SimBroker
from millstream.sim.clients.operator import Operator
from millstream.sim.clients.workload import Workload
from millstream.sim.faults.isolation import IsolationFaults
from millstream.sim.faults.operations import Operations
from millstream.sim.faults.power import PowerCuts, ReplicatedPowerCuts
from millstream.sim.nemesis import Nemesis
from millstream.sim.world.machines import World
from millstream.sim.world.zookeeper import SimZooKeeper


class ClusterNemesis(Nemesis):
    """`brokers` exist from the start; brokers in `spare` join and leave."""

    def __init__(
        self,
        world: World,
        brokers: Sequence[SimBroker],
        workload: Workload,
        zookeeper: SimZooKeeper,
        operator: Operator,
        *,
        spare: Sequence[SimBroker] = (),
        flushed: bool = False,
        only: Sequence[str] = (),
    ) -> None:
        """Create a nemesis.

        `flushed`: every replica in sync flushes records before they are acknowledged.
        """
        power = PowerCuts()
        if not flushed:
            power = ReplicatedPowerCuts(world, zookeeper, (*brokers, *spare))
        super().__init__(world, brokers, workload, power=power, only=only)
        isolation = IsolationFaults(self._run, self._links, zookeeper)
        self._operations = Operations(self._run, operator, zookeeper, spare)
        self.actions |= {
            "expire": isolation.expire,
            "no quorum": isolation.no_quorum,
            "cut from zookeeper": isolation.cut_from_zookeeper,
            "isolate": isolation.isolate,
            "split": isolation.split,
            "roll": self._operations.roll,
            "elect": self._operations.elect,
            "reassign": self._operations.reassign,
            "add broker": self._operations.add_broker,
            "remove broker": self._operations.remove_broker,
        }
        if flushed:
            self.actions["blackout"] = self._brokers.blackout
        for broker in spare:
            broker.on_self_shutdown = self._brokers.revive

    async def heal(self) -> None:
        await super().heal()
        await self._operations.start_spare_with_partitions()
