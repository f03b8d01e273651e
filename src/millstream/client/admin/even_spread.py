"""Spread units over brokers evenly: within each topic first, then in total, at the lowest cost.

A unit is a replica or the preferred leadership of a partition. Each level knows how many units each
broker has, and the cost of shifting one unit from a broker to another. ``even_out`` shifts units
along cheapest paths, as successive shortest paths do for a minimum-cost flow. The result is
therefore even with as few moves as possible, not only with few.

Without racks the result is exact up to ``EXACT_BROKERS`` brokers. With racks, a shift is not found
if two replicas of one partition would have to make it together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

Path = list[int]

# With more brokers than this a shift between topics takes the direct way only. The plan is as even,
# and may have a few more moves than necessary, but does not take minutes.
EXACT_BROKERS = 24


class Level(ABC):
    """Units on brokers, which are numbered from 0."""

    counts: list[int]

    @abstractmethod
    def costs(self, source: int) -> list[int | None]:
        """Return the cost of shifting one unit to each broker, None where no unit may go."""

    @abstractmethod
    def shift(self, source: int, target: int) -> bool:
        """Shift one unit at that cost; return False, with nothing changed, if none may go there."""

    @abstractmethod
    def copy_state(self) -> Any:
        """Return what ``restore`` needs to go back to this state."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Go back to a state that ``copy_state`` returned."""


def even_out(level: Level) -> None:
    """Bring the counts within one of each other, or as near as the allowed shifts permit."""
    brokers = range(len(level.counts))
    low, rest = divmod(sum(level.counts), len(brokers))
    high = low + bool(rest)

    def sources(over: int) -> Path:
        return [broker for broker in brokers if level.counts[broker] > over]

    def targets(under: int) -> Path:
        return [broker for broker in brokers if level.counts[broker] < under]

    _shift_while(level, lambda: _cheapest_path(level, sources(high), targets(high)))
    _shift_while(level, lambda: _cheapest_path(level, sources(low), targets(low)))
    _shift_while(level, lambda: _any_improvement(level))


def _shift_while(level: Level, find: Callable[[], Path | None]) -> None:
    while (path := find()) is not None:
        if not _shift_along(level, path):
            return


def _any_improvement(level: Level) -> Path | None:
    """Find a path that narrows the spread where racks or few replicas keep it wider than one."""
    counts = level.counts
    for source in sorted(range(len(counts)), key=lambda broker: -counts[broker]):
        targets = [broker for broker in range(len(counts)) if counts[broker] + 2 <= counts[source]]
        if path := _cheapest_path(level, [source], targets):
            return path
    return None


def _shift_along(level: Level, path: Path) -> bool:
    """Shift one unit along each step, or none: with racks a step may rule out a later one."""
    before = level.copy_state()
    for source, target in pairwise(path):
        if not level.shift(source, target):
            level.restore(before)
            return False
    return True


def _cheapest_path(level: Level, sources: Path, targets: Path) -> Path | None:
    """Return the cheapest path with the fewest steps from any source to any target."""
    if not sources or not targets:
        return None
    distances, before = _distances(level, sources)
    reached = [target for target in targets if distances[target] is not None]
    if not reached:
        return None
    path = [min(reached, key=lambda target: (distances[target], level.counts[target], target))]
    while (previous := before[path[-1]]) is not None:
        path.append(previous)
    return path[::-1]


Distance = tuple[int, int]  # cost, then steps


def _distances(level: Level, sources: Path) -> tuple[list[Distance | None], list[int | None]]:
    """Find the cheapest way from the sources to every broker. No cycle has a negative cost."""
    size = len(level.counts)
    distances: list[Distance | None] = [None] * size
    before: list[int | None] = [None] * size
    for source in sources:
        distances[source] = (0, 0)
    pending = deque(sorted(sources, key=lambda broker: (-level.counts[broker], broker)))
    waiting = set(sources)
    while pending:
        here = pending.popleft()
        waiting.discard(here)
        reached = distances[here]
        assert reached is not None
        costs = level.costs(here)
        cheapest = min((cost for cost in costs if cost is not None), default=None)
        if cheapest is None or not _may_improve(distances, (reached[0] + cheapest, reached[1] + 1)):
            continue
        for target, cost in enumerate(costs):
            if cost is None:
                continue
            distance, known = (reached[0] + cost, reached[1] + 1), distances[target]
            if known is None or distance < known:
                distances[target], before[target] = distance, here
                if target not in waiting:
                    waiting.add(target)
                    pending.append(target)
    return distances, before


def _may_improve(distances: list[Distance | None], distance: Distance) -> bool:
    return any(known is None or distance < known for known in distances)


class Units(Level):
    """The units of one topic. Sets of partitions are bits of an integer, bit 0 for partition 0.

    ``home`` has the partitions for which a broker had a unit before the plan. A unit that leaves
    its home costs 1, a unit that returns costs -1, and a unit that was not at home costs nothing.
    """

    def __init__(self, held: Sequence[int], home: Sequence[int]) -> None:
        self.held = list(held)
        self.home = list(home)
        self.counts = [partitions.bit_count() for partitions in self.held]
        self._costs: dict[int, list[int | None]] = {}

    # Whether a broker with more units can always give one directly to a broker with fewer.
    always_direct = False

    @abstractmethod
    def movable(self, source: int, target: int) -> int:
        """Return the partitions whose unit may go from source to target."""

    def _cheapest(self, source: int, target: int) -> tuple[int, int] | None:
        movable = self.movable(source, target)
        if not movable:
            return None
        leaves, returns = self.home[source], self.home[target]
        for cost, partitions in (
            (-1, movable & ~leaves & returns),
            (0, movable & ~(leaves ^ returns)),
            (1, movable),
        ):
            if partitions:
                return cost, partitions & -partitions
        return None

    def _cost(self, source: int, target: int) -> int | None:
        cheapest = self._cheapest(source, target) if source != target else None
        return cheapest[0] if cheapest else None

    def costs(self, source: int) -> list[int | None]:
        if source not in self._costs:
            self._costs[source] = [self._cost(source, target) for target in range(len(self.held))]
        return self._costs[source]

    def _forget_costs(self, changed: tuple[int, int]) -> None:
        """Compute the costs from and to these brokers again."""
        for broker in changed:
            self._costs.pop(broker, None)
        for source, costs in self._costs.items():
            for target in changed:
                costs[target] = self._cost(source, target)

    def shift(self, source: int, target: int) -> bool:
        cheapest = self._cheapest(source, target)
        if cheapest is None:
            return False
        self.held[source] &= ~cheapest[1]
        self.held[target] |= cheapest[1]
        self.counts[source] -= 1
        self.counts[target] += 1
        self._forget_costs((source, target))
        return True

    def copy_state(self) -> Any:
        return list(self.held), list(self.counts)

    def restore(self, state: Any) -> None:
        self.held, self.counts = (list(values) for values in state)
        self._costs.clear()


class Replicas(Units):
    """Replicas of one topic: at most one of a partition per broker; racks do not get worse."""

    def __init__(
        self, held: Sequence[int], home: Sequence[int], racks: Sequence[str | None] | None
    ) -> None:
        super().__init__(held, home)
        self._racks = racks
        self.always_direct = racks is None

    def movable(self, source: int, target: int) -> int:
        movable = self.held[source] & ~self.held[target]
        if self._racks is None or not movable:
            return movable
        return movable & (
            ~self._others_in_rack(target, source) | self._others_in_rack(source, source)
        )

    def _forget_costs(self, changed: tuple[int, int]) -> None:
        if self._racks is None:
            super()._forget_costs(changed)
        else:
            self._costs.clear()

    def _others_in_rack(self, broker: int, source: int) -> int:
        """Return the partitions with a replica in the broker's rack that is not the source's."""
        assert self._racks is not None
        rack, partitions = self._racks[broker], 0
        if rack is not None:
            for other, held in enumerate(self.held):
                if other != source and self._racks[other] == rack:
                    partitions |= held
        return partitions


class Leaders(Units):
    """Preferred leaderships of one topic: only a replica can lead its partition."""

    def __init__(self, led: Sequence[int], home: Sequence[int], replicas: Sequence[int]) -> None:
        super().__init__(led, home)
        self._replicas = replicas

    def movable(self, source: int, target: int) -> int:
        return self.held[source] & self._replicas[target]


class Total(Level):
    """The units of all topics. A shift goes along the cheapest path within one topic.

    Only shifts that leave the topic as even as it was are allowed: they take a unit from a broker
    that has one more of that topic than the target.
    """

    def __init__(self, topics: Sequence[Units]) -> None:
        self._topics = topics
        self.counts = [
            sum(column) for column in zip(*(topic.counts for topic in topics), strict=True)
        ]
        # For each pair of brokers the topics that allow a shift, by cost.
        self._shifts: dict[tuple[int, int], dict[int, dict[int, None]]] = {}
        self._listed: list[list[tuple[tuple[int, int], int]]] = [[] for _ in topics]
        self._costs: list[list[int | None]] = [[None] * len(self.counts) for _ in self.counts]
        for index in range(len(topics)):
            self._list(index)

    def _list(self, index: int) -> None:
        """List the shifts that a topic allows, instead of those before it changed."""
        topic, before = self._topics[index], self._listed[index]
        for pair, cost in before:
            del self._shifts[pair][cost][index]
        self._listed[index] = [
            ((source, target), cost)
            for source in range(len(topic.counts))
            for target, cost in _even_shifts(topic, source)
        ]
        for pair, cost in self._listed[index]:
            self._shifts.setdefault(pair, {}).setdefault(cost, {})[index] = None
        for source, target in {pair for pair, _ in (*before, *self._listed[index])}:
            by_cost = self._shifts[source, target]
            self._costs[source][target] = min(
                (cost for cost, topics in by_cost.items() if topics), default=None
            )

    def _candidates(self, source: int, target: int) -> list[int]:
        """Return the topics that allow the shift, cheapest first."""
        by_cost = self._shifts.get((source, target), {})
        return [index for cost in sorted(by_cost) for index in by_cost[cost]]

    def costs(self, source: int) -> list[int | None]:
        return self._costs[source]

    def shift(self, source: int, target: int) -> bool:
        for index in self._candidates(source, target):
            path = _cheapest_path(self._topics[index], [source], [target])
            if path is not None and _shift_along(self._topics[index], path):
                self.counts[source] -= 1
                self.counts[target] += 1
                self._list(index)
                return True
        return False

    def copy_state(self) -> Any:
        return list(self.counts), [topic.copy_state() for topic in self._topics]

    def restore(self, state: Any) -> None:
        counts, topics = state
        self.counts = list(counts)
        for index, (topic, before) in enumerate(zip(self._topics, topics, strict=True)):
            if topic.copy_state() != before:
                topic.restore(before)
                self._list(index)


def _even_shifts(topic: Units, source: int) -> list[tuple[int, int]]:
    """Return the brokers that may take a unit of the source with the topic staying as even."""
    target_count = topic.counts[source] - 1
    targets = [broker for broker, count in enumerate(topic.counts) if count == target_count]
    if not targets or not topic.counts[source]:
        return []
    if len(topic.counts) > EXACT_BROKERS and topic.always_direct:
        costs = topic.costs(source)
        return [(target, cost) for target in targets if (cost := costs[target]) is not None]
    distances, _ = _distances(topic, [source])
    return [
        (target, distance[0]) for target in targets if (distance := distances[target]) is not None
    ]


def even_out_topics(topics: Sequence[Units]) -> None:
    """Even out each topic, then the total of all topics."""
    for topic in topics:
        even_out(topic)
    if len(topics) > 1:
        even_out(Total(topics))
