"""The nemesis: does to brokers, links, clocks and clients what the real world does to them, from one seed.

It works in rounds with quiet times between them; at the end everything is healed and every broker runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from millstream.sim.broker import SimBroker
from millstream.sim.workload import Workload
from millstream.sim.world import World
from millstream.sim.zookeeper import HOST, SimZooKeeper

_CLOCK_MS = 25 * 60_000  # less than an hour: a record may not come from further ahead


class Nemesis:
    """Acts on the brokers of a world. ``crashes``: machines may lose their power, not only processes their lives."""

    def __init__(
        self,
        world: World,
        brokers: Sequence[SimBroker],
        workload: Workload,
        *,
        crashes: bool = True,
        most_down: int = 1,
        only: Sequence[str] = (),
    ) -> None:
        self.world = world
        self.brokers = list(brokers)
        self.workload = workload
        self.dice = world.dice_for("nemesis")
        self.most_down = most_down
        # Brokers that somebody is starting or stopping.
        self._busy: set[SimBroker] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.actions: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self.kill,
            "stop": self.stop,
            "pause": self.pause,
            "reset": self.reset,
            "cut": self.cut,
            "cut one way": self.cut_one_way,
            "slow": self.slow,
            "clock": self.jump,
            "pause client": self.pause_client,
            "kill quickly": self.kill_quickly,
        }
        if crashes:
            self.actions["crash"] = self.crash
        self._favourites = list(only)

    async def run(self, seconds: float) -> None:
        """Rounds of trouble; a run has its own favourites, so that some schedules are thick with one kind."""
        until = self.world.scheduler.now + seconds
        favourites = self._favourites or self.dice.sample(
            sorted(self.actions), self.dice.randint(2, len(self.actions))
        )
        while self.world.scheduler.now < until:
            await asyncio.sleep(self.dice.expovariate(1 / 2.5))
            name = self.dice.choice(favourites)
            self.world.activity[f"nemesis {name}"] += 1
            await self.actions[name]()

    async def heal(self) -> None:
        """The end of all trouble."""
        self.world.tell("nemesis", "heals everything")
        self.world.network.heal()
        await asyncio.gather(*self._tasks)
        for broker in self.brokers:
            if not broker.running:
                await broker.start()

    # ---- brokers --------------------------------------------------------------------------------------------

    def _victim(self) -> SimBroker | None:
        """A running broker that may go down now."""
        down = sum(1 for broker in self.brokers if not broker.running or broker in self._busy)
        free = [broker for broker in self.brokers if broker.running and broker not in self._busy]
        return self.dice.choice(free) if free and down < self.most_down else None

    def _later(self, broker: SimBroker, delay_s: float) -> None:
        """Starts it again after a while; the nemesis does not wait."""

        async def start() -> None:
            await asyncio.sleep(delay_s)
            while not broker.running:
                if await broker.start():
                    break
            self._busy.discard(broker)

        self._busy.add(broker)
        self._tasks.append(asyncio.get_running_loop().create_task(start()))

    async def kill(self) -> None:
        if broker := self._victim():
            broker.kill()
            self._later(broker, self.dice.uniform(0.0, 6.0))

    def _may_crash(self, broker: SimBroker) -> bool:
        """Whether a power cut may not cost what was acknowledged; a broker alone has it on disk."""
        return "crash" in self.actions

    def _crash(self, broker: SimBroker) -> None:
        broker.crash()

    async def crash(self) -> None:
        if (broker := self._victim()) and self._may_crash(broker):
            self._crash(broker)
            self._later(broker, self.dice.uniform(0.1, 8.0))

    async def kill_quickly(self) -> None:
        """Again, soon after it was started: while it loads, or has just begun to serve."""
        if broker := self._victim():
            for _ in range(self.dice.randint(1, 3)):
                if self.dice.random() < 0.5 and self._may_crash(broker):
                    self._crash(broker)
                else:
                    broker.kill()
                starting = asyncio.get_running_loop().create_task(broker.start())
                await asyncio.sleep(self.dice.choice((0.0005, 0.002, 0.05, 0.5)) * self.dice.random())
                if not broker.running:
                    await starting
                    break
                if self.dice.random() < 0.3:
                    break
            if broker.running:
                await starting
            if not broker.running:
                self._later(broker, 0.5)

    async def stop(self) -> None:
        if broker := self._victim():
            self._busy.add(broker)
            await broker.stop()
            self._later(broker, self.dice.uniform(0.0, 4.0))

    async def pause(self) -> None:
        if broker := self._victim():
            broker.pause(self.dice.choice((0.5, 3.0, 12.0)) * self.dice.random())

    async def jump(self) -> None:
        broker = self.dice.choice(self.brokers)
        if broker.running:
            target = self.dice.randint(-_CLOCK_MS, _CLOCK_MS)
            broker.jump_clock(target - broker.machine.clock_offset_ms)

    # ---- links and clients ----------------------------------------------------------------------------------

    async def reset(self) -> None:
        self.world.network.reset_some(self.dice.choice((0.2, 1.0)))

    async def cut(self) -> None:
        await self._cut(both=True)

    async def cut_one_way(self) -> None:
        await self._cut(both=False)

    async def _cut(self, *, both: bool) -> None:
        network = self.world.network
        links = network.links()
        chosen = [link for link in links if self.dice.random() < self.dice.choice((0.1, 0.5))]
        for source, target in chosen:
            network.cut(source, target)
            if both:
                network.cut(target, source)
        self.world.activity["links cut"] += len(chosen)
        self.world.tell("nemesis", f"cuts {len(chosen)} links")
        await asyncio.sleep(self.dice.choice((1.0, 5.0, 20.0)) * self.dice.random())
        network.heal()

    async def slow(self) -> None:
        for source, target in self.world.network.links():
            if self.dice.random() < 0.3:
                self.world.network.slow_down(source, target, self.dice.uniform(0.01, 1.5))
        await asyncio.sleep(self.dice.uniform(0.5, 5.0))
        self.world.network.heal()

    async def pause_client(self) -> None:
        client = self.dice.choice(self.workload.clients)
        client.loop.pause(self.dice.choice((0.5, 5.0, 15.0)) * self.dice.random())
        self.world.activity["clients paused"] += 1


class ClusterNemesis(Nemesis):
    """Also comes between brokers, and between them and their ZooKeeper."""

    def __init__(
        self,
        world: World,
        brokers: Sequence[SimBroker],
        workload: Workload,
        zookeeper: SimZooKeeper,
        *,
        only: Sequence[str] = (),
    ) -> None:
        super().__init__(world, brokers, workload, only=only)
        self.zookeeper = zookeeper
        zookeeper.on_write.append(self._wrote)
        self._isr: dict[str, list[int]] = {}
        # Partitions of which a broker lost the end, until it has left their ISR.
        self._lossy: dict[int, set[str]] = {broker.node_id: set() for broker in brokers}
        self.actions |= {
            "expire": self.expire,
            "no quorum": self.no_quorum,
            "cut from zookeeper": self.cut_from_zookeeper,
            "isolate": self.isolate,
            "split": self.split,
        }

    def _wrote(self, path: str, data: bytes) -> None:
        if path.endswith("/state"):
            self._isr[path] = json.loads(data)["isr"]
            for node, paths in self._lossy.items():
                if node not in self._isr[path]:
                    paths.discard(path)

    def _may_crash(self, broker: SimBroker) -> bool:
        """Only while every partition has another replica in sync that has lost nothing: what the last one loses is lost, in Kafka as
        well as here (KIP-966)."""
        return super()._may_crash(broker) and all(
            any(node != broker.node_id and path not in self._lossy[node] for node in isr)
            for path, isr in self._isr.items()
        )

    def _crash(self, broker: SimBroker) -> None:
        self._lossy[broker.node_id].update(p for p, isr in self._isr.items() if broker.node_id in isr)
        broker.crash()

    async def expire(self) -> None:
        """A session ends though its broker lives."""
        if self.zookeeper.sessions:
            self.zookeeper.expire(self.dice.choice(list(self.zookeeper.sessions)))

    async def no_quorum(self) -> None:
        self.zookeeper.pause(self.dice.choice((1.0, 10.0)) * self.dice.random())

    async def cut_from_zookeeper(self) -> None:
        """A broker that its clients and the others reach, and ZooKeeper does not."""
        broker = self.dice.choice(self.brokers)
        self._cut_link(broker.host, HOST, both=self.dice.random() < 0.7)
        await self._until_healed()

    async def isolate(self) -> None:
        """A broker that the others do not reach; ZooKeeper and clients may."""
        broker = self.dice.choice(self.brokers)
        both = self.dice.random() < 0.7
        for other in self.brokers:
            if other is not broker:
                self._cut_link(other.host, broker.host, both=both)
        if self.dice.random() < 0.5:
            self._cut_link(broker.host, HOST, both=both)
        await self._until_healed()

    async def split(self) -> None:
        """One link between two brokers."""
        one, other = self.dice.sample(self.brokers, 2)
        self._cut_link(one.host, other.host, both=self.dice.random() < 0.5)
        await self._until_healed()

    def _cut_link(self, source: str, target: str, *, both: bool) -> None:
        self.world.activity["links cut"] += 1
        self.world.tell("nemesis", f"cuts {source} {'and' if both else 'to'} {target}")
        self.world.network.cut(source, target)
        if both:
            self.world.network.cut(target, source)

    async def _until_healed(self) -> None:
        await asyncio.sleep(self.dice.choice((2.0, 8.0, 20.0)) * self.dice.random())
        self.world.network.heal()
