"""A plan to spread partitions over a set of brokers.

The goals, in this order: the replicas of each topic are even over the brokers, then the replicas of
all topics together, then the preferred leaders, again within each topic before in total. A plan
meets them with as few moved replicas as possible. Replicas stay on different racks; this goes
before all the goals. ``even_spread`` has the algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from millstream.client.admin.even_spread import Leaders, Replicas, even_out_topics
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition

Assignment = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]


def spread(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Sequence[int],
    racks: Racks | None = None,
    *,
    factor: int | None = None,
) -> Assignment:
    """Return the planned replicas of each partition, ``factor`` or as many as before."""
    replica_count = factor or max((len(replicas) for replicas in current.values()), default=0)
    if replica_count > len(set(brokers)):
        raise ClientError(
            f"{replica_count} replicas do not fit on {len(set(brokers))} brokers",
            hint="name more brokers, or fewer replicas with --replication-factor",
        )
    plan = _Plan(current, sorted(set(brokers)), racks or {})
    plan.drop(factor)
    plan.fill(factor)
    plan.even_out()
    plan.spread_leaders()
    return plan.assignment()


class _Plan:
    """Sets of brokers for each partition, which become replica lists in the end."""

    def __init__(
        self, current: Mapping[TopicPartition, Sequence[int]], brokers: Sequence[int], racks: Racks
    ) -> None:
        self.current = {tp: tuple(replicas) for tp, replicas in sorted(current.items())}
        self.brokers = brokers
        self.racks = racks
        self.replicas: dict[TopicPartition, set[int]] = {}
        self.leader: dict[TopicPartition, int] = {}
        self.topics: dict[str, list[TopicPartition]] = {}
        for tp, replicas in self.current.items():
            self.replicas[tp] = {broker for broker in replicas if broker in set(brokers)}
            self.topics.setdefault(tp.topic, []).append(tp)
        self.load = Counter[int]()
        self.topic_load = Counter[tuple[str, int]]()
        for tp in self.current:
            for broker in self.replicas[tp]:
                self._count(tp, broker, 1)

    def _count(self, tp: TopicPartition, broker: int, change: int) -> None:
        self.load[broker] += change
        self.topic_load[tp.topic, broker] += change

    def drop(self, factor: int | None) -> None:
        """Drop replicas beyond the factor: in a rack with another one first, then on full brokers.

        The first replica, which leads, stays if its broker does.
        """
        for tp, replicas in self.replicas.items():
            while factor is not None and len(replicas) > factor:
                droppable = replicas - {self.current[tp][0]} or replicas
                broker = max(droppable, key=lambda broker: self._fullness(tp, broker))
                replicas.remove(broker)
                self._count(tp, broker, -1)

    def fill(self, factor: int | None) -> None:
        """Add replicas up to the factor: in a rack without one first, then on empty brokers."""
        for tp, replicas in self.replicas.items():
            while len(replicas) < (factor or len(self.current[tp])):
                broker = min(
                    (broker for broker in self.brokers if broker not in replicas),
                    key=lambda broker: self._fullness(tp, broker),
                )
                replicas.add(broker)
                self._count(tp, broker, 1)

    def _fullness(self, tp: TopicPartition, broker: int) -> tuple[bool, int, int, int]:
        rack = self.racks.get(broker)
        shares_rack = rack is not None and any(
            self.racks.get(other) == rack for other in self.replicas[tp] if other != broker
        )
        return shares_rack, self.topic_load[tp.topic, broker], self.load[broker], broker

    def even_out(self) -> None:
        """Move replicas until each topic is even, and then all topics together."""
        rack_of = [self.racks.get(broker) for broker in self.brokers]
        # One rack for all, or one for each, rules nothing out.
        racks = rack_of if 1 < len(set(rack_of)) < len(rack_of) else None
        spreads = [
            Replicas(
                self._bits(partitions, lambda tp, broker: broker in self.replicas[tp]),
                self._bits(partitions, lambda tp, broker: broker in self.current[tp]),
                racks,
            )
            for partitions in self.topics.values()
        ]
        even_out_topics(spreads)
        for partitions, topic in zip(self.topics.values(), spreads, strict=True):
            for index, tp in enumerate(partitions):
                self.replicas[tp] = set(self._brokers(topic.held, index))

    def spread_leaders(self) -> None:
        """Choose the replica that comes first in each partition."""
        led, topic_led = Counter[int](), Counter[tuple[str, int]]()
        for tp, replicas in self.replicas.items():
            first = self.current[tp][0]
            if first not in replicas:
                first = min(
                    replicas, key=lambda broker: (topic_led[tp.topic, broker], led[broker], broker)
                )
            self.leader[tp] = first
            led[first] += 1
            topic_led[tp.topic, first] += 1
        spreads = [
            Leaders(
                self._bits(partitions, lambda tp, broker: self.leader[tp] == broker),
                self._bits(partitions, lambda tp, broker: self.current[tp][0] == broker),
                self._bits(partitions, lambda tp, broker: broker in self.replicas[tp]),
            )
            for partitions in self.topics.values()
        ]
        even_out_topics(spreads)
        for partitions, topic in zip(self.topics.values(), spreads, strict=True):
            for index, tp in enumerate(partitions):
                (self.leader[tp],) = self._brokers(topic.held, index)

    def _bits(
        self, partitions: Sequence[TopicPartition], holds: Callable[[TopicPartition, int], bool]
    ) -> list[int]:
        """Return for each broker the partitions for which it holds, as bits."""
        return [
            sum(1 << index for index, tp in enumerate(partitions) if holds(tp, broker))
            for broker in self.brokers
        ]

    def _brokers(self, held: Sequence[int], index: int) -> list[int]:
        return [
            broker for broker, bits in zip(self.brokers, held, strict=True) if bits >> index & 1
        ]

    def assignment(self) -> Assignment:
        return {tp: self._ordered(tp) for tp in self.current}

    def _ordered(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the leader, then the others; new replicas stand where the replaced ones stood."""
        added = sorted(self.replicas[tp] - set(self.current[tp]))
        ordered = []
        for broker in self.current[tp]:
            if broker in self.replicas[tp]:
                ordered.append(broker)
            elif added:
                ordered.append(added.pop(0))
        ordered += added
        leader = self.leader[tp]
        return (leader, *(broker for broker in ordered if broker != leader))


def moves(
    current: Mapping[TopicPartition, Sequence[int]], planned: Mapping[TopicPartition, Sequence[int]]
) -> Assignment:
    """Return the part of a plan that differs from the current assignment."""
    return {
        tp: tuple(nodes)
        for tp, nodes in planned.items()
        if tuple(current.get(tp, ())) != tuple(nodes)
    }
