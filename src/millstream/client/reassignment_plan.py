"""A plan to spread partitions over a set of brokers: as few replicas moved as possible, the rest left where it is.

Replicas on brokers that are not wanted go; then replicas move from brokers that have too many to those that have too few, onto another rack
where that is possible; last, the order within each partition is changed so that every broker is the preferred leader of its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition

Assignment = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]


def spread(
    current: Mapping[TopicPartition, Sequence[int]], brokers: Sequence[int], racks: Racks | None = None
) -> Assignment:
    """The replicas that each partition should have; its replication factor stays."""
    factor = max((len(replicas) for replicas in current.values()), default=0)
    if factor > len(set(brokers)):
        raise ClientError(
            f"{factor} replicas do not fit on {len(set(brokers))} brokers",
            hint="name more brokers, or lower the replication factor first",
        )
    plan = _Plan(current, sorted(set(brokers)), racks or {})
    plan.leave_the_unwanted()
    plan.even_out()
    plan.spread_leaders()
    return plan.replicas_of


class _Plan:
    def __init__(
        self, current: Mapping[TopicPartition, Sequence[int]], brokers: Sequence[int], racks: Racks
    ) -> None:
        self.brokers = brokers
        self.racks = racks
        self.replicas_of: Assignment = {tp: tuple(replicas) for tp, replicas in current.items()}
        self.load = Counter(dict.fromkeys(brokers, 0))
        for replicas in self.replicas_of.values():
            self.load.update(node for node in replicas if node in self.load)

    def leave_the_unwanted(self) -> None:
        for tp, replicas in self.replicas_of.items():
            for node in replicas:
                if node not in self.load:
                    self._replace(tp, node, self._best_for(tp, node))

    def even_out(self) -> None:
        """Moves one replica at a time from the fullest broker to the emptiest that may have it."""
        while True:
            fullest, emptiest = max(self.load.values()), min(self.load.values())
            if fullest - emptiest <= 1 or not self._move_one(fullest):
                return

    def _move_one(self, fullest: int) -> bool:
        for tp, replicas in self.replicas_of.items():
            for node in replicas:
                if self.load[node] == fullest:
                    target = self._best_for(tp, node)
                    if self.load[target] < fullest - 1 and not self._worse_racks(tp, node, target):
                        self._replace(tp, node, target)
                        return True
        return False

    def _best_for(self, tp: TopicPartition, instead_of: int) -> int:
        """The broker with the fewest replicas that has none of this partition, on a rack that has none if there is one."""
        others = [node for node in self.replicas_of[tp] if node != instead_of]
        used = {self.racks.get(node) for node in others}
        free = [node for node in self.brokers if node not in others and node != instead_of]
        if not free:
            return instead_of
        return min(free, key=lambda node: (self._doubles(node, used), self.load[node], node))

    def _doubles(self, node: int, used: set[str | None]) -> bool:
        rack = self.racks.get(node)
        return rack is not None and rack in used

    def _worse_racks(self, tp: TopicPartition, node: int, target: int) -> bool:
        used = {self.racks.get(other) for other in self.replicas_of[tp] if other != node}
        return self._doubles(target, used) and not self._doubles(node, used)

    def _replace(self, tp: TopicPartition, node: int, target: int) -> None:
        self.replicas_of[tp] = tuple(target if one == node else one for one in self.replicas_of[tp])
        if node in self.load:
            self.load[node] -= 1
        self.load[target] += 1

    def spread_leaders(self) -> None:
        led = Counter(dict.fromkeys(self.brokers, 0))
        for replicas in self.replicas_of.values():
            led[replicas[0]] += 1
        for tp, replicas in self.replicas_of.items():
            first = min(replicas, key=lambda node: (led[node], replicas.index(node)))
            if led[first] + 1 < led[replicas[0]]:
                led[replicas[0]] -= 1
                led[first] += 1
                self.replicas_of[tp] = (first, *(node for node in replicas if node != first))


def moves(
    current: Mapping[TopicPartition, Sequence[int]], wanted: Mapping[TopicPartition, Sequence[int]]
) -> Assignment:
    """What of a plan is not so already."""
    return {tp: tuple(nodes) for tp, nodes in wanted.items() if tuple(current.get(tp, ())) != tuple(nodes)}
