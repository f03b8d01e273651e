"""A run with several brokers over one simulated ZooKeeper: replication and elections under faults.

In most runs nothing is flushed explicitly. Acknowledged records are on at minimum two machines, and
one machine at a time may lose its power. In some runs every replica flushes first
(``flush.messages``), and all may lose power at once. In some, replicas that catch up are throttled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from millstream.control.image import ClusterImage
from millstream.ports.coordination import Coordination
from millstream.replication.read_replica import RACK_AWARE
from millstream.sim.broker import SimBroker
from millstream.sim.checks.observe import image_in
from millstream.sim.clients.channel import Client
from millstream.sim.clients.operator import Operator
from millstream.sim.clients.workload import RACKS
from millstream.sim.cluster_nemesis import ClusterNemesis
from millstream.sim.nemesis import Nemesis
from millstream.sim.single import Single
from millstream.sim.world.machines import Process, World
from millstream.sim.world.zookeeper import HOST, SimCoordination, SimZooKeeper

_SESSION_MS = 6000
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
# A run without these proves nothing about replication under faults.
_MINIMUM = {"elections": 2, "isr changes": 2}
# The shares of all runs.
_FLUSHED = _THROTTLED = 0.2


class Cluster(Single):
    """Three brokers, three replicas, at minimum two in sync."""

    replication = 3
    size = 3
    minimum: ClassVar[dict[str, int]] = Single.minimum | _MINIMUM
    spare = 2  # may join later; a single spare would rule out reassignments to new brokers only

    def __init__(self, world: World, *, quick: bool = False, only: Sequence[str] = ()) -> None:
        self.zookeeper = SimZooKeeper(world)
        super().__init__(world, quick=quick, only=only)

    def make_brokers(self) -> list[SimBroker]:
        settings = self.settings()
        return [
            SimBroker(
                self.world,
                node,
                settings | {"broker.rack": RACKS[node % len(RACKS)]},
                coordination=self._coordination,
            )
            for node in range(1, self.size + self.spare + 1)
        ]

    async def _coordination(self, process: Process) -> Coordination:
        return await SimCoordination(self.zookeeper, process, session_timeout_ms=_SESSION_MS).open()

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        self.flushed, self.throttled = (
            self.dice.random() < _FLUSHED,
            self.dice.random() < _THROTTLED,
        )
        if not self.flushed:
            del settings["log.flush.interval.messages"]
        if self.throttled:
            settings |= dict.fromkeys(RATES, self.dice.choice((3_000, 30_000)))
        return settings | {
            "zookeeper.connect": f"{HOST}:2181",
            "zookeeper.session.timeout.ms": _SESSION_MS,
            "default.replication.factor": self.replication,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": self.replication,
            "transaction.state.log.replication.factor": self.replication,
            "transaction.state.log.min.isr": 2,
            "replica.selector.class": RACK_AWARE,
            "log.dirs": self.dice.choice(("/data", "/data,/more")),
            "replica.lag.time.max.ms": self.dice.choice((3_000, 10_000)),
        }

    def topic_configs(self) -> list[tuple[str, str]]:
        throttled = [(name, "*") for name in THROTTLED_REPLICAS] if self.throttled else []
        return super().topic_configs() + throttled

    def image(self) -> ClusterImage:
        """Return the image of ZooKeeper, whatever brokers believe."""
        return image_in(self.zookeeper)

    def nemesis(self) -> Nemesis:
        addresses = [broker.address for broker in self.brokers]
        operator = Operator(
            self.world,
            Client(self.world.process("operator"), "operator", addresses),
            self.replication,
        )
        return ClusterNemesis(
            self.world,
            self.brokers[: self.size],
            self.workload,
            self.zookeeper,
            operator,
            spare=self.brokers[self.size :],
            flushed=self.flushed,
            only=self._only,
        )


class Replication(Cluster):
    """The same without transactions, but more of everything else."""

    clients: ClassVar[dict[str, int]] = {
        "producers": 4,
        "transactors": 0,
        "consumers": 3,
        "members": 3,
        "copiers": 0,
        "recyclers": 1,
        "trimmers": 1,
    }
    minimum: ClassVar[dict[str, int]] = {
        "send ok": 100,
        "polled": 500,
        "commits": 5,
        "faults": 5,
    } | _MINIMUM
