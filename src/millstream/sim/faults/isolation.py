"""Faults between the brokers of a cluster, and between them and ZooKeeper."""

from __future__ import annotations

from millstream.sim.faults.links import LinkFaults
from millstream.sim.faults.shared import FaultRun
from millstream.sim.world.zookeeper import HOST, SimZooKeeper


class IsolationFaults:
    """Each public method is one fault of a cluster."""

    def __init__(self, run: FaultRun, links: LinkFaults, zookeeper: SimZooKeeper) -> None:
        self._run = run
        self._links = links
        self._zookeeper = zookeeper
        self._dice = run.dice

    async def expire(self) -> None:
        """End the session of a broker that is alive."""
        if self._zookeeper.sessions:
            self._zookeeper.expire(self._dice.choice(list(self._zookeeper.sessions)))

    async def no_quorum(self) -> None:
        self._zookeeper.pause(self._dice.choice((1.0, 10.0)) * self._dice.random())

    async def cut_from_zookeeper(self) -> None:
        """Cut a broker off from ZooKeeper, but not from its clients and the other brokers."""
        broker = self._dice.choice(self._run.brokers)
        self._cut_between([(broker.host, HOST)], both=self._dice.random() < 0.7)

    async def isolate(self) -> None:
        """Cut a broker off from the other brokers, perhaps also from ZooKeeper."""
        broker = self._dice.choice(self._run.brokers)
        links = [(other.host, broker.host) for other in self._run.brokers if other is not broker]
        if self._dice.random() < 0.5:
            links.append((broker.host, HOST))
        self._cut_between(links, both=self._dice.random() < 0.7)

    async def split(self) -> None:
        """Cut the link between two brokers."""
        source, target = self._dice.sample(self._run.brokers, 2)
        self._cut_between([(source.host, target.host)], both=self._dice.random() < 0.5)

    def _cut_between(self, links: list[tuple[str, str]], *, both: bool) -> None:
        for source, target in links:
            self._run.world.log("nemesis", f"cuts {source} {'and' if both else 'to'} {target}")
        back = [(target, source) for source, target in links] if both else []
        seconds = self._dice.choice((2.0, 8.0, 20.0)) * self._dice.random()
        self._links.cut_for_a_while([*links, *back], seconds)
