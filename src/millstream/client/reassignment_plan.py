"""A plan to spread partitions over a set of brokers: as few replicas moved as possible, the rest left where it is.

Replicas on brokers that are not wanted go; each partition gets as many as it should have, if that is said; then replicas move from brokers that have too many to those that have too few, onto another rack
where that is possible; last, the order within each partition is changed so that every broker is the preferred leader of its share, of each topic where there are
enough partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition

Assignment = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]
_NOBODY = -1


def spread(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Sequence[int],
    racks: Racks | None = None,
    *,
    factor: int | None = None,
) -> Assignment:
    """The replicas that each partition should have: so many of each, or as many as before."""
    most = factor or max((len(replicas) for replicas in current.values()), default=0)
    if most > len(set(brokers)):
        raise ClientError(
            f"{most} replicas do not fit on {len(set(brokers))} brokers",
            hint="name more brokers, or fewer replicas with --replication-factor",
        )
    plan = _Plan(current, sorted(set(brokers)), racks or {})
    if factor is not None:
        plan.drop_beyond(factor)
    plan.leave_the_unwanted()
    if factor is not None:
        plan.fill_up_to(factor)
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

    def drop_beyond(self, factor: int) -> None:
        """Those on brokers that are not wanted go first, then those of the fullest, and never the first, which leads."""
        for tp, replicas in self.replicas_of.items():
            while len(replicas) > factor:
                gone = max(replicas[1:], key=lambda node: (node not in self.load, self.load.get(node, 0)))
                replicas = tuple(node for node in replicas if node != gone)
                if gone in self.load:
                    self.load[gone] -= 1
            self.replicas_of[tp] = replicas

    def fill_up_to(self, factor: int) -> None:
        for tp in self.replicas_of:
            while len(self.replicas_of[tp]) < factor:
                more = self._best_for(tp, _NOBODY)
                self.replicas_of[tp] = (*self.replicas_of[tp], more)
                self.load[more] += 1

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
        """Within each topic first, then over all: a busy topic is not made up for by an idle one that is led elsewhere."""
        led, of_topic = Counter(dict.fromkeys(self.brokers, 0)), Counter[tuple[str, int]]()
        for tp, replicas in self.replicas_of.items():
            led[replicas[0]] += 1
            of_topic[tp.topic, replicas[0]] += 1
        for tp, replicas in self.replicas_of.items():
            here = {node: of_topic[tp.topic, node] for node in replicas}
            first, now = (
                min(replicas, key=lambda node: (here[node], led[node], replicas.index(node))),
                replicas[0],
            )
            less = here[now] - here[first]
            if less > 1 or (less == 1 and led[first] + 1 < led[now]):
                led[now] -= 1
                led[first] += 1
                of_topic[tp.topic, now] -= 1
                of_topic[tp.topic, first] += 1
                self.replicas_of[tp] = (first, *(node for node in replicas if node != first))


def moves(
    current: Mapping[TopicPartition, Sequence[int]], wanted: Mapping[TopicPartition, Sequence[int]]
) -> Assignment:
    """What of a plan is not so already."""
    return {tp: tuple(nodes) for tp, nodes in wanted.items() if tuple(current.get(tp, ())) != tuple(nodes)}
