"""Faults of the network: connections reset, links cut in one or both directions, links slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from millstream.sim.faults.shared import FaultRun
from millstream.sim.world.network import Link


class LinkFaults:
    """Each public method is one fault. Links heal after a while, in the background."""

    def __init__(self, run: FaultRun) -> None:
        self._run = run
        self._world = run.world
        self._dice = run.dice
        self._cuts: Counter[Link] = Counter()  # a link may be cut for two reasons

    async def reset(self) -> None:
        self._world.network.reset_some(self._dice.choice((0.2, 1.0)))

    async def cut(self) -> None:
        self._cut_some(both=True)

    async def cut_one_way(self) -> None:
        self._cut_some(both=False)

    def _cut_some(self, *, both: bool) -> None:
        share = self._dice.choice((0.1, 0.5))
        chosen = [link for link in self._world.network.links() if self._dice.random() < share]
        if both:
            chosen += [(target, source) for source, target in chosen]
        self._world.log("nemesis", f"cuts {len(chosen)} links")
        self.cut_for_a_while(chosen, self._dice.choice((1.0, 5.0, 20.0)) * self._dice.random())

    def cut_for_a_while(self, links: Iterable[Link], seconds: float) -> None:
        links = list(links)
        self._world.activity["links cut"] += len(links)
        for link in links:
            self._cuts[link] += 1
            self._world.network.cut(*link)

        async def heal() -> None:
            await self._run.wait(seconds)
            for link in links:
                self._cuts[link] -= 1
                if not self._cuts[link]:
                    self._world.network.heal(*link)

        self._run.in_background(heal())

    async def slow(self) -> None:
        chosen = [link for link in self._world.network.links() if self._dice.random() < 0.3]
        for link in chosen:
            self._world.network.slow_down(*link, self._dice.uniform(0.01, 1.5))

        async def heal() -> None:
            await self._run.wait(seconds)
            for link in chosen:
                self._world.network.speed_up(*link)

        seconds = self._dice.uniform(0.5, 5.0)
        self._run.in_background(heal())
