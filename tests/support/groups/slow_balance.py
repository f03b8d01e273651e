"""The balance of ``groups.assignors.balance`` as its rules say it, looking at everybody for every
step: what the quick one must agree with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

Assigned = dict[str, dict[bytes, set[int]]]
Loads = dict[str, int]
Readers = Mapping[bytes, list[str]]
Way = list[tuple[str, bytes, str]]


def fill(counts: Mapping[bytes, int], assigned: Assigned, loads: Loads, readers: Readers) -> None:
    """Every free partition to the member with the least."""
    taken = {
        (topic, one)
        for topics in assigned.values()
        for topic, rows in topics.items()
        for one in rows
    }
    for topic in sorted(readers, key=lambda topic: (len(readers[topic]), topic)):
        for partition in range(counts[topic]):
            if (topic, partition) not in taken:
                member_id = min(readers[topic], key=loads.__getitem__)
                assigned[member_id].setdefault(topic, set()).add(partition)
                loads[member_id] += 1


def balance(assigned: Assigned, loads: Loads, readers: Readers) -> None:
    for topic in sorted(readers):
        while direct := _direct(topic, assigned, loads, readers[topic]):
            _go([direct], assigned, loads)
    while way := _find_way(assigned, loads, readers):
        _go(way, assigned, loads)


def _direct(
    topic: bytes, assigned: Assigned, loads: Loads, members: list[str]
) -> tuple[str, bytes, str] | None:
    givers = [member_id for member_id in members if assigned[member_id].get(topic)]
    if not givers:
        return None
    giver, taker = max(givers, key=loads.__getitem__), min(members, key=loads.__getitem__)
    return (giver, topic, taker) if loads[giver] >= loads[taker] + 2 else None


def _go(way: Way, assigned: Assigned, loads: Loads) -> None:
    for giver, topic, taker in way:
        partition = max(assigned[giver][topic])
        assigned[giver][topic].discard(partition)
        assigned[taker].setdefault(topic, set()).add(partition)
    loads[way[0][0]] -= 1
    loads[way[-1][2]] += 1


def _find_way(assigned: Assigned, loads: Loads, readers: Readers) -> Way | None:
    for start in sorted(loads, key=lambda member_id: -loads[member_id]):
        if way := _search(start, assigned, loads, readers):
            return way
    return None


def _search(start: str, assigned: Assigned, loads: Loads, readers: Readers) -> Way | None:
    ways: dict[str, Way] = {start: []}
    seen: set[bytes] = set()
    queue = deque([start])
    while queue:
        giver = queue.popleft()
        for topic in sorted(
            topic for topic, rows in assigned[giver].items() if rows and topic not in seen
        ):
            seen.add(topic)
            for taker in readers[topic]:
                if taker not in ways:
                    ways[taker] = [*ways[giver], (giver, topic, taker)]
                    if loads[taker] + 2 <= loads[start]:
                        return ways[taker]
                    queue.append(taker)
    return None
