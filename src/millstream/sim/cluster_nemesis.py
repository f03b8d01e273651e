"""The nemesis of a cluster: also comes between brokers, between them and their ZooKeeper, and does what operators do at bad times."""

from __future__ import annotations

import json
from collections.abc import Sequence

from millstream.sim.broker import SimBroker
from millstream.sim.clients.operator import Operator
from millstream.sim.clients.workload import Workload
from millstream.sim.nemesis import LAST_LOST_POWER, Nemesis
from millstream.sim.world.machines import World
from millstream.sim.world.zookeeper import HOST, SimZooKeeper


class ClusterNemesis(Nemesis):
    """``brokers`` are there from the beginning, ``spare`` ones come and go."""

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
        """``flushed``: what is acknowledged is on the disk of every replica in sync."""
        super().__init__(world, brokers, workload, only=only)
        self.zookeeper = zookeeper
        self.operator = operator
        self.spare = list(spare)
        self._flushed = flushed
        zookeeper.on_write.append(self._wrote)
        self._isr: dict[str, list[int]] = {}
        # Partitions of which a broker lost the end, until it has left their ISR.
        self._lossy: dict[int, set[str]] = {broker.node_id: set() for broker in (*brokers, *spare)}
        self.actions |= {
            "expire": self.expire,
            "no quorum": self.no_quorum,
            "cut from zookeeper": self.cut_from_zookeeper,
            "isolate": self.isolate,
            "split": self.split,
            "roll": self.roll,
            "elect": self.elect,
            "reassign": self.reassign,
            "add broker": self.add_broker,
            "remove broker": self.remove_broker,
        }
        if flushed:
            self.actions["blackout"] = self.blackout
        for broker in self.spare:
            broker.on_given_up = self.revive

    async def heal(self) -> None:
        await super().heal()
        for broker in self.spare:
            # A move to it may have been accepted while it went.
            if not broker.running and not self.operator.hosts_nothing(broker.node_id, self.zookeeper):
                await broker.start()

    def _wrote(self, path: str, data: bytes | None) -> None:
        if data is None:
            for gone in [known for known in self._isr if known.startswith(path + "/")]:
                del self._isr[gone]
                for paths in self._lossy.values():
                    paths.discard(gone)
        elif path.endswith("/state"):
            state = json.loads(data)
            before = self._isr.get(path, [])
            if before and all(path in self._lossy[node] for node in before) and state["leader"] in before:
                # Sessions of all others ended after its power was cut and before anybody noticed. Nothing but eligible leader
                # replicas (KIP-966) could help.
                self.world.tell("nemesis", f"{path} is led by the last in sync, which lost its power")
                self.world.activity[LAST_LOST_POWER] += 1
            self._isr[path] = state["isr"]
            for node, paths in self._lossy.items():
                if node not in self._isr[path]:
                    paths.discard(path)

    def _may_crash(self, broker: SimBroker) -> bool:
        """Only while every partition has another replica in sync that has lost nothing: what the last one loses is lost, in Kafka as
        well as here (KIP-966)."""
        return super()._may_crash(broker) and (self._flushed or self._others_have_all(broker))

    def _others_have_all(self, broker: SimBroker) -> bool:
        return all(
            any(node != broker.node_id and path not in self._lossy[node] for node in isr)
            for path, isr in self._isr.items()
        )

    def _crash(self, broker: SimBroker) -> None:
        if not self._flushed:
            self._lossy[broker.node_id].update(p for p, isr in self._isr.items() if broker.node_id in isr)
        broker.crash()

    async def blackout(self) -> None:
        """Everybody loses power at once."""
        for broker in self.brokers:
            if broker.running and broker not in self._busy:
                self._crash(broker)
                self._later(broker, self.dice.uniform(0.1, 8.0))

    # ---- links ----------------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """A session ends though its broker lives."""
        if self.zookeeper.sessions:
            self.zookeeper.expire(self.dice.choice(list(self.zookeeper.sessions)))

    async def no_quorum(self) -> None:
        self.zookeeper.pause(self.dice.choice((1.0, 10.0)) * self.dice.random())

    async def cut_from_zookeeper(self) -> None:
        """A broker that its clients and the others reach, and ZooKeeper does not."""
        broker = self.dice.choice(self.brokers)
        self._cut_between([(broker.host, HOST)], both=self.dice.random() < 0.7)

    async def isolate(self) -> None:
        """A broker that the others do not reach; ZooKeeper and clients may."""
        broker = self.dice.choice(self.brokers)
        links = [(other.host, broker.host) for other in self.brokers if other is not broker]
        if self.dice.random() < 0.5:
            links.append((broker.host, HOST))
        self._cut_between(links, both=self.dice.random() < 0.7)

    async def split(self) -> None:
        """One link between two brokers."""
        one, other = self.dice.sample(self.brokers, 2)
        self._cut_between([(one.host, other.host)], both=self.dice.random() < 0.5)

    def _cut_between(self, links: list[tuple[str, str]], *, both: bool) -> None:
        for source, target in links:
            self.world.tell("nemesis", f"cuts {source} {'and' if both else 'to'} {target}")
        back = [(target, source) for source, target in links] if both else []
        self.cut_for_a_while([*links, *back], self.dice.choice((2.0, 8.0, 20.0)) * self.dice.random())

    # ---- operators ------------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """One broker after the other is stopped in good order and started again."""
        for broker in list(self.brokers):
            if self._over.is_set() or self._victim() is None or not broker.running or broker in self._busy:
                return
            self._busy.add(broker)
            await broker.stop()
            if not broker.running:
                await broker.start()
            self._busy.discard(broker)
            await self._wait(self.dice.choice((0.1, 2.0)) * self.dice.random())

    async def elect(self) -> None:
        """Leadership back to the preferred replicas."""
        self._meanwhile(self.operator.elect_preferred())

    async def reassign(self) -> None:
        """Some partitions to other brokers, or called off again."""
        self._meanwhile(self.operator.reassign(self.dice, [broker.node_id for broker in self.brokers]))

    async def add_broker(self) -> None:
        """An empty broker joins and gets some of the partitions."""
        if self.spare:
            broker = self.spare.pop()
            self.brokers.append(broker)
            self.world.activity["brokers added"] += 1
            self._busy.add(broker)
            if not broker.running:
                await broker.start()
            self._busy.discard(broker)
            self._meanwhile(self.operator.reassign(self.dice, [one.node_id for one in self.brokers]))

    async def remove_broker(self) -> None:
        """The last one that came loses its partitions, and then goes for good; unless something comes between."""
        if len(self.brokers) > self.operator.replication and not self._busy:
            broker = self.brokers[-1]
            self._meanwhile(self._remove(broker, [one.node_id for one in self.brokers if one is not broker]))

    async def _remove(self, broker: SimBroker, others: list[int]) -> None:
        if not await self.operator.move_away(broker.node_id, others, until=self._over):
            return
        if broker.running and broker not in self._busy and broker in self.brokers:
            self._busy.add(broker)
            await broker.stop()
            self._busy.discard(broker)
            if not broker.running and self.operator.hosts_nothing(broker.node_id, self.zookeeper):
                self.world.activity["brokers removed"] += 1
                self.brokers.remove(broker)
                self.spare.append(broker)
            else:
                self._later(broker, 0.5)
