"""Evens out an assignment in which members want different topics.

As long as there is a way from a member with more to a member with at least two less, one partition moves along it: directly, or
through members in between that pass on another one. Where no such way is left the loads cannot be more even. Direct moves come first:
they disturb the fewest.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

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
    """Ways from the fullest members to those with at least two less, shortest first, many at a time.

    A round looks at every member and topic once: topics that the fullest hold, members that read those, topics that these hold in turn.
    What a round without success has seen is closed: nobody in it can give to anybody outside, and no later way leads through it.
    """

    def __init__(self, assigned: Assigned, loads: dict[str, int], readers: Readers) -> None:
        self.assigned = assigned
        self.loads = loads
        self.readers = readers
        self.closed: set[str] = set()
        self.steps = 0

    def take(self) -> None:
        least = min(self.loads.values(), default=0)
        open_members = list(self.loads)
        while open_members and self.steps < _MOST_STEPS:
            most = max(map(self.loads.__getitem__, open_members))
            if most < least + 2:
                return
            sources = [member_id for member_id in open_members if self.loads[member_id] == most]
            self.steps += len(open_members)
            if not _Round(self, sources, most).run():
                open_members = [member_id for member_id in open_members if member_id not in self.closed]


class _Round:
    """One look around, from members that all have ``most``."""

    def __init__(self, detours: _Detours, sources: list[str], most: int) -> None:
        self.detours = detours
        self.assigned, self.loads = detours.assigned, detours.loads
        self.sources = dict.fromkeys(sources)
        self.most = most
        # member -> the topic through which it was reached; topic -> who is as near as it and holds some of it
        self.came: dict[str, bytes] = {}
        self.givers: dict[bytes, list[str]] = {}

    def run(self) -> bool:
        """Whether something was moved."""
        frontier = list(self.sources)
        while frontier:
            takers, frontier = self._reach(self._held(frontier))
            if takers:
                return self._serve(takers)
        self.detours.closed.update(self.sources, self.came)
        return False

    def _held(self, members: list[str]) -> list[bytes]:
        """Topics of theirs that nobody nearer holds."""
        found: dict[bytes, list[str]] = {}
        for member_id in members:
            for topic, rows in self.assigned[member_id].items():
                if rows and topic not in self.givers:
                    found.setdefault(topic, []).append(member_id)
        self.givers |= found
        return sorted(found)

    def _reach(self, topics: list[bytes]) -> tuple[list[str], list[str]]:
        """Readers of these topics that were not reached before: those that can take, and the others."""
        takers: list[str] = []
        others: list[str] = []
        for topic in topics:
            self.detours.steps += len(self.detours.readers[topic])
            for member_id in self.detours.readers[topic]:
                if member_id in self.came or member_id in self.sources or member_id in self.detours.closed:
                    continue
                self.came[member_id] = topic
                (takers if self.loads[member_id] <= self.most - 2 else others).append(member_id)
        return takers, others

    def _serve(self, takers: list[str]) -> bool:
        """The emptiest first, again and again; ways are looked for until the fullest have too little for it."""
        moved = False
        queue = [(self.loads[taker], position) for position, taker in enumerate(takers)]
        heapify(queue)
        while queue and queue[0][0] <= self.most - 2:
            load, position = queue[0]
            way = self._way_to(takers[position])
            if way is None:
                heappop(queue)
                continue
            for giver, topic, receiver in way:
                _move(self.assigned, topic, giver, receiver)
            self.loads[way[-1][0]] -= 1
            self.loads[takers[position]] += 1
            heapreplace(queue, (load + 1, position))
            moved = True
        return moved

    def _way_to(self, taker: str) -> Way | None:
        """Backwards from the taker, through givers that still have what they are to give."""
        way: Way = []
        receiver, topic = taker, self.came[taker]
        while True:
            giver = self._giver(topic, self.loads[taker] + 2)
            if giver is None:
                return None
            way.append((giver, topic, receiver))
            if giver in self.sources:
                return way
            receiver, topic = giver, self.came[giver]

    def _giver(self, topic: bytes, enough: int) -> str | None:
        """Whoever cannot give now cannot later in this round either: takers come by what they have."""
        givers = self.givers[topic]
        while givers:
            giver = givers[-1]
            if self.assigned[giver].get(topic) and (giver not in self.sources or self.loads[giver] >= enough):
                return giver
            givers.pop()
        return None
