"""Evens out an assignment in which members want different topics.

As long as there is a way from a member with more to a member with at least two less, one partition moves along it: directly, or
through members in between that pass on another one. Where no such way is left the loads cannot be more even. Direct moves come first:
they disturb the fewest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

Assigned = dict[str, dict[bytes, set[int]]]
Readers = Mapping[bytes, list[str]]
Way = list[tuple[str, bytes, str]]
# How many members are looked at for detours at most; beyond it the assignment stays a little uneven rather than the broker busy.
_MOST_STEPS = 300_000


def balance(assigned: Assigned, loads: dict[str, int], readers: Readers) -> None:
    """Changes ``assigned`` and ``loads``."""
    for topic in sorted(readers):
        _level(topic, assigned, loads, readers[topic])
    _Detours(assigned, loads, readers).take()


def _level(topic: bytes, assigned: Assigned, loads: dict[str, int], members: list[str]) -> None:
    """Direct moves within a topic, from the fullest that has some of it to the emptiest that wants it; the first in the list of
    those that are even. Entries of the heaps whose load is not that of the member any more are skipped."""
    takers = [(loads[member_id], position) for position, member_id in enumerate(members)]
    givers = [
        (-loads[member_id], position)
        for position, member_id in enumerate(members)
        if assigned[member_id].get(topic)
    ]
    heapify(takers)
    heapify(givers)
    while givers:
        load, position = givers[0]
        giver = members[position]
        if loads[giver] != -load or not assigned[giver].get(topic):
            heappop(givers)
            continue
        load, position = takers[0]
        taker = members[position]
        if loads[taker] != load:
            heappop(takers)
            continue
        if loads[giver] < loads[taker] + 2:
            return
        _move(assigned, topic, giver, taker)
        for member_id, change, place in ((giver, -1, givers[0][1]), (taker, 1, position)):
            loads[member_id] += change
            heappush(givers, (-loads[member_id], place))
            heappush(takers, (loads[member_id], place))


def _move(assigned: Assigned, topic: bytes, giver: str, taker: str) -> None:
    partition = max(assigned[giver][topic])
    assigned[giver][topic].discard(partition)
    assigned[taker].setdefault(topic, set()).add(partition)


class _Detours:
    """Ways from one of the fullest members, the shortest of them, to one with at least two less.

    What a search without success has seen is closed: nobody in it can give to anybody outside, and no later way leads through
    it. So no member is looked at again and again, however many have more than others want.
    """

    def __init__(self, assigned: Assigned, loads: dict[str, int], readers: Readers) -> None:
        self.assigned = assigned
        self.loads = loads
        self.readers = readers
        self.order = list(loads)
        self.position = {member_id: position for position, member_id in enumerate(self.order)}
        self.fullest = [(-load, position) for position, load in enumerate(loads.values())]
        self.closed: set[str] = set()
        self.closed_topics: set[bytes] = set()
        self.steps = 0
        heapify(self.fullest)

    def take(self) -> None:
        least = min(self.loads.values(), default=0)
        while self.fullest and self.steps < _MOST_STEPS:
            load, position = heappop(self.fullest)
            start = self.order[position]
            if start in self.closed or self.loads[start] != -load:
                continue
            if -load < least + 2:
                return
            way = self._search(start)
            if way is not None:
                self._go(way)

    def _go(self, way: Way) -> None:
        for giver, topic, taker in way:
            _move(self.assigned, topic, giver, taker)
        for member_id, change in ((way[0][0], -1), (way[-1][2], 1)):
            self.loads[member_id] += change
            heappush(self.fullest, (-self.loads[member_id], self.position[member_id]))

    def _search(self, start: str) -> Way | None:
        came: dict[str, tuple[str, bytes]] = {}
        seen_topics: set[bytes] = set()
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic in sorted(topic for topic, rows in self.assigned[giver].items() if rows):
                if topic in seen_topics or topic in self.closed_topics:
                    continue
                seen_topics.add(topic)
                self.steps += len(self.readers[topic])
                taker = self._look(topic, giver, start, came, queue)
                if taker is not None:
                    return _way_to(taker, start, came)
        self.closed.update(came, [start])
        self.closed_topics |= seen_topics
        return None

    def _look(
        self, topic: bytes, giver: str, start: str, came: dict[str, tuple[str, bytes]], queue: deque[str]
    ) -> str | None:
        """The first reader of the topic that has at least two less than the start; the others are to be asked in turn."""
        enough = self.loads[start] - 2
        for taker in self.readers[topic]:
            if taker == start or taker in came or taker in self.closed:
                continue
            came[taker] = (giver, topic)
            if self.loads[taker] <= enough:
                return taker
            queue.append(taker)
        return None


def _way_to(end: str, start: str, came: dict[str, tuple[str, bytes]]) -> Way:
    way = []
    taker = end
    while taker != start:
        giver, topic = came[taker]
        way.append((giver, topic, taker))
        taker = giver
    return way[::-1]
