"""Evens out an assignment in which members want different topics.

As long as there is a way from a member with more to a member with at least two less, one partition moves along it: directly, or
through members in between that pass on another one. Where no such way is left the loads cannot be more even. Direct moves come first:
they disturb the fewest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

Assigned = dict[str, dict[bytes, set[int]]]
Readers = Mapping[bytes, list[str]]
# How many detours are looked for at most; beyond it the assignment stays a little uneven rather than the broker busy.
_MOST_SEARCHES = 2_000


def balance(assigned: Assigned, loads: dict[str, int], readers: Readers) -> None:
    """Changes ``assigned`` and ``loads``."""
    for topic in sorted(readers):
        _level(topic, assigned, loads, readers[topic])
    for _ in range(_MOST_SEARCHES):
        way = _find_way(assigned, loads, readers)
        if way is None:
            return
        for giver, topic, taker in way:
            _move(assigned, topic, giver, taker)
        loads[way[0][0]] -= 1
        loads[way[-1][2]] += 1


def _level(topic: bytes, assigned: Assigned, loads: dict[str, int], members: list[str]) -> None:
    """Direct moves within a topic, from the fullest that has some of it to the emptiest that wants it."""
    while True:
        givers = [member_id for member_id in members if assigned[member_id].get(topic)]
        if not givers:
            return
        giver = max(givers, key=loads.__getitem__)
        taker = min(members, key=loads.__getitem__)
        if loads[giver] < loads[taker] + 2:
            return
        _move(assigned, topic, giver, taker)
        loads[giver] -= 1
        loads[taker] += 1


def _move(assigned: Assigned, topic: bytes, giver: str, taker: str) -> None:
    partition = max(assigned[giver][topic])
    assigned[giver][topic].discard(partition)
    assigned[taker].setdefault(topic, set()).add(partition)


def _find_way(
    assigned: Assigned, loads: dict[str, int], readers: Readers
) -> list[tuple[str, bytes, str]] | None:
    """From one of the fullest members, the shortest way to one with at least two less."""
    least = min(loads.values())
    for start in sorted(loads, key=lambda member_id: -loads[member_id]):
        if loads[start] < least + 2:
            return None
        way = _search(start, assigned, loads, readers)
        if way is not None:
            return way
    return None


def _search(
    start: str, assigned: Assigned, loads: dict[str, int], readers: Readers
) -> list[tuple[str, bytes, str]] | None:
    came: dict[str, tuple[str, bytes]] = {}
    seen_topics: set[bytes] = set()
    queue = deque([start])
    while queue:
        giver = queue.popleft()
        for topic in sorted(topic for topic, rows in assigned[giver].items() if rows):
            if topic in seen_topics:
                continue
            seen_topics.add(topic)
            for taker in readers[topic]:
                if taker == start or taker in came:
                    continue
                came[taker] = (giver, topic)
                if loads[taker] + 2 <= loads[start]:
                    return _way_to(taker, start, came)
                queue.append(taker)
    return None


def _way_to(end: str, start: str, came: dict[str, tuple[str, bytes]]) -> list[tuple[str, bytes, str]]:
    way = []
    taker = end
    while taker != start:
        giver, topic = came[taker]
        way.append((giver, topic, taker))
        taker = giver
    return way[::-1]
