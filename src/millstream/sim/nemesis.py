"""The nemesis: does to brokers, links, clocks and clients what the real world does to them, from one seed.

It works in rounds with quiet times between them. Links stay cut and disks full while other troubles go on; at the end everything is
healed and every broker runs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from millstream.sim.broker import SimBroker
from millstream.sim.clients.workload import Workload
from millstream.sim.world.disk import io_error, no_space
from millstream.sim.world.machines import World
from millstream.sim.world.network import Link

# What may cost records, in Kafka and here: a run in which it happened is not judged.
LAST_LOST_POWER = "last in sync lost its power"
# A run without any of these shows little.
_TELLING = ("kill", "stop", "crash", "kill quickly", "expire", "isolate", "roll")
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
        self._cuts: Counter[Link] = Counter()  # one link may be cut for two reasons
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
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
            "full disk": self.full_disk,
            "bad disk": self.bad_disk,
        }
        if crashes:
            self.actions["crash"] = self.crash
        self._favourites = list(only)
        for broker in self.brokers:
            broker.on_given_up = self.revive

    async def run(self, seconds: float) -> None:
        """Rounds of trouble; a run has its own favourites, so that some schedules are thick with one kind."""
        until = self.world.scheduler.now + seconds
        favourites = self._favourites or self._choose()
        while self.world.scheduler.now < until:
            await asyncio.sleep(self.dice.expovariate(1 / 1.6))
            name = self.dice.choice(favourites)
            self.world.activity[f"nemesis {name}"] += 1
            await self.actions[name]()

    def _choose(self) -> list[str]:
        chosen = self.dice.sample(sorted(self.actions), self.dice.randint(2, len(self.actions)))
        if not set(chosen) & set(_TELLING):
            chosen.append(self.dice.choice([name for name in _TELLING if name in self.actions]))
        return chosen

    async def heal(self) -> None:
        """The end of all trouble."""
        self.world.tell("nemesis", "heals everything")
        self._over.set()
        self.world.network.heal()
        for broker in self.brokers:
            broker.mend_disk()
        while self._tasks:
            tasks, self._tasks = self._tasks, []
            await asyncio.gather(*tasks)
        for broker in self.brokers:
            if broker.running and broker.has_given_up_a_directory:
                broker.kill()
            if not broker.running:
                await broker.start()

    def _meanwhile(self, work: Coroutine[Any, Any, None]) -> None:
        """Goes on beside the next rounds."""
        self._tasks.append(self._loop.create_task(work))

    async def _wait(self, seconds: float) -> None:
        """Or until all trouble ends."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass

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
        self._meanwhile(start())

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
            self._busy.add(broker)
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
            self._busy.discard(broker)
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
        share = self.dice.choice((0.1, 0.5))
        chosen = [link for link in self.world.network.links() if self.dice.random() < share]
        if both:
            chosen += [(target, source) for source, target in chosen]
        self.world.tell("nemesis", f"cuts {len(chosen)} links")
        self.cut_for_a_while(chosen, self.dice.choice((1.0, 5.0, 20.0)) * self.dice.random())

    def cut_for_a_while(self, links: Iterable[Link], seconds: float) -> None:
        links = list(links)
        self.world.activity["links cut"] += len(links)
        for link in links:
            self._cuts[link] += 1
            self.world.network.cut(*link)

        async def heal() -> None:
            await self._wait(seconds)
            for link in links:
                self._cuts[link] -= 1
                if not self._cuts[link]:
                    self.world.network.heal(*link)

        self._meanwhile(heal())

    async def slow(self) -> None:
        chosen = [link for link in self.world.network.links() if self.dice.random() < 0.3]
        for link in chosen:
            self.world.network.slow_down(*link, self.dice.uniform(0.01, 1.5))

        async def heal() -> None:
            await self._wait(seconds)
            for link in chosen:
                self.world.network.speed_up(*link)

        seconds = self.dice.uniform(0.5, 5.0)
        self._meanwhile(heal())

    # ---- disks ----------------------------------------------------------------------------------------------

    async def full_disk(self) -> None:
        """No space for a while; the broker goes on as well as it can."""
        broker = self.dice.choice(self.brokers)
        if broker.disk_is_sound:
            seconds = self.dice.choice((0.2, 2.0, 10.0)) * self.dice.random()
            # A disk that is nearly full takes what is small, so that of two writes that belong together one may fail.
            dice = random.Random(self.dice.random()) if self.dice.random() < 0.5 else None
            broker.break_disk(no_space, ("append", "write", "create", "makedirs"), dice=dice)
            self._meanwhile(self._mend(broker, seconds))

    async def bad_disk(self) -> None:
        """Errors of the device: the broker gives the directory up, and itself with its last one."""
        broker = self._victim()
        if broker is not None and broker.disk_is_sound:
            failing = self.dice.choice((("append",), ("sync",), ("append", "write", "sync", "rename")))
            below = self.dice.choice(("/", f"{self.dice.choice(broker.directories)}/"))
            broker.break_disk(io_error, failing, below)
            self._meanwhile(self._replace(broker, self.dice.uniform(0.1, 3.0)))

    async def _mend(self, broker: SimBroker, seconds: float) -> None:
        await self._wait(seconds)
        broker.mend_disk()

    async def _replace(self, broker: SimBroker, seconds: float) -> None:
        """The disk is mended; a directory that was given up is taken up again with the next start."""
        await self._mend(broker, seconds)
        await self._wait(self.dice.uniform(0.0, 6.0))
        if len(broker.directories) > 1 and broker.running and broker not in self._busy and self._victim():
            broker.kill()
            self._later(broker, self.dice.uniform(0.0, 2.0))

    def revive(self, broker: SimBroker) -> None:
        """It gave itself up: somebody looks at its disk and starts it again."""

        async def start() -> None:
            await self._wait(self.dice.uniform(0.5, 5.0))
            broker.mend_disk()
            while not broker.running and not await broker.start():
                pass
            self._busy.discard(broker)

        self._busy.add(broker)
        self._meanwhile(start())

    async def pause_client(self) -> None:
        client = self.dice.choice(self.workload.clients)
        client.loop.pause(self.dice.choice((0.5, 5.0, 15.0)) * self.dice.random())
        self.world.activity["clients paused"] += 1
