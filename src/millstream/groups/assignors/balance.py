"""Balance an assignment in which members subscribe to different topics.

While there is a path from a member to another with at least two partitions less, a partition is
moved along it. The path is direct, or goes through members that each pass on another partition.
Without such a path the loads cannot be more even. Direct moves come first, because they change the
fewest assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

Assigned = dict[str, dict[bytes, set[int]]]
Readers = Mapping[bytes, list[str]]
Path = list[tuple[str, bytes, str]]
# Maximum number of members to visit for indirect moves. Above it the assignment stays slightly
# uneven, to bound the broker's work.
_MAX_STEPS = 300_000


def balance(assigned: Assigned, loads: dict[str, int], readers: Readers) -> None:
    """Balance ``assigned`` and ``loads`` in place."""
    for topic in sorted(readers):
        _level(topic, assigned, loads, readers[topic])
    _Detours(assigned, loads, readers).take()


def _level(topic: bytes, assigned: Assigned, loads: dict[str, int], members: list[str]) -> None:
    """Move partitions of a topic directly, from the most to the least loaded member that reads it.

    On a tie the first member of the list is chosen. Heap entries whose load is out of date are
    skipped.
    """
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
        for member_id, change, index in ((giver, -1, givers[0][1]), (taker, 1, position)):
            loads[member_id] += change
            heappush(givers, (-loads[member_id], index))
            heappush(takers, (loads[member_id], index))


def _move(assigned: Assigned, topic: bytes, giver: str, taker: str) -> None:
    partition = max(assigned[giver][topic])
    assigned[giver][topic].discard(partition)
    assigned[taker].setdefault(topic, set()).add(partition)


class _Detours:
    """Indirect moves from the most loaded members to members with at least two partitions less.

    Shortest paths come first, and a round makes many moves. A round visits every member and topic
    once: the topics that the most loaded members hold, the members that read those, the topics that
    these hold, and so on. The members that an unsuccessful round has visited are closed: none of
    them can give to a member outside, and no later path leads through them.
    """

    def __init__(self, assigned: Assigned, loads: dict[str, int], readers: Readers) -> None:
        self.assigned = assigned
        self.loads = loads
        self.readers = readers
        self.closed: set[str] = set()
        self.steps = 0

    def take(self) -> None:
        minimum = min(self.loads.values(), default=0)
        open_members = list(self.loads)
        while open_members and self.steps < _MAX_STEPS:
            max_load = max(map(self.loads.__getitem__, open_members))
            if max_load < minimum + 2:
                return
            sources = [member_id for member_id in open_members if self.loads[member_id] == max_load]
            self.steps += len(open_members)
            if not _Round(self, sources, max_load).run():
                open_members = [
                    member_id for member_id in open_members if member_id not in self.closed
                ]


class _Round:
    """One search, from members that all have ``max_load`` partitions."""

    def __init__(self, detours: _Detours, sources: list[str], max_load: int) -> None:
        self.detours = detours
        self.assigned, self.loads = detours.assigned, detours.loads
        self.sources = dict.fromkeys(sources)
        self.max_load = max_load
        # member -> topic through which it was reached
        self.reached_by: dict[str, bytes] = {}
        # topic -> members at the same distance that hold partitions of it
        self.givers: dict[bytes, list[str]] = {}

    def run(self) -> bool:
        """Return whether a partition was moved."""
        frontier = list(self.sources)
        while frontier:
            takers, frontier = self._reach(self._held(frontier))
            if takers:
                return self._serve(takers)
        self.detours.closed.update(self.sources, self.reached_by)
        return False

    def _held(self, members: list[str]) -> list[bytes]:
        """Return the topics of these members that no nearer member holds."""
        held: dict[bytes, list[str]] = {}
        for member_id in members:
            for topic, rows in self.assigned[member_id].items():
                if rows and topic not in self.givers:
                    held.setdefault(topic, []).append(member_id)
        self.givers |= held
        return sorted(held)

    def _reach(self, topics: list[bytes]) -> tuple[list[str], list[str]]:
        """Return the newly reached readers of these topics: possible takers, and others."""
        takers: list[str] = []
        others: list[str] = []
        for topic in topics:
            self.detours.steps += len(self.detours.readers[topic])
            for member_id in self.detours.readers[topic]:
                if (
                    member_id in self.reached_by
                    or member_id in self.sources
                    or member_id in self.detours.closed
                ):
                    continue
                self.reached_by[member_id] = topic
                (takers if self.loads[member_id] <= self.max_load - 2 else others).append(member_id)
        return takers, others

    def _serve(self, takers: list[str]) -> bool:
        """Move partitions to the least loaded takers first, while the sources have enough."""
        moved = False
        queue = [(self.loads[taker], position) for position, taker in enumerate(takers)]
        heapify(queue)
        while queue and queue[0][0] <= self.max_load - 2:
            load, position = queue[0]
            path = self._path_to(takers[position])
            if path is None:
                heappop(queue)
                continue
            for giver, topic, receiver in path:
                _move(self.assigned, topic, giver, receiver)
            self.loads[path[-1][0]] -= 1
            self.loads[takers[position]] += 1
            heapreplace(queue, (load + 1, position))
            moved = True
        return moved

    def _path_to(self, taker: str) -> Path | None:
        """Search backwards from the taker, through givers that still hold the partition's topic."""
        path: Path = []
        receiver, topic = taker, self.reached_by[taker]
        while True:
            giver = self._giver(topic, self.loads[taker] + 2)
            if giver is None:
                return None
            path.append((giver, topic, receiver))
            if giver in self.sources:
                return path
            receiver, topic = giver, self.reached_by[giver]

    def _giver(self, topic: bytes, enough: int) -> str | None:
        """Return a member that can give a partition of the topic.

        A member that cannot give now cannot give later in this round, so it is dropped.
        """
        givers = self.givers[topic]
        while givers:
            giver = givers[-1]
            if self.assigned[giver].get(topic) and (
                giver not in self.sources or self.loads[giver] >= enough
            ):
                return giver
            givers.pop()
        return None
