"""The assignors that run on the broker: ``range`` and ``uniform``.

An assignor is a pure function of the members' subscriptions and their previous target assignment.
It returns an assignment for every member. Members are processed in a fixed order, so the result is
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from millstream.groups.assignors.balance import balance
from millstream.groups.consumer.member import Partitions

# topic id -> number of partitions
Counts = Mapping[bytes, int]
Assigned = dict[str, dict[bytes, set[int]]]


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """The input of an assignor for a member: its subscribed topics and current target.

    Only topics that exist are listed.
    """

    topics: frozenset[bytes]
    instance_id: str | None = None
    target: Partitions = field(default_factory=dict)


Members = Mapping[str, MemberSpec]
Assignor = Callable[[Members, Counts], dict[str, Partitions]]


def assign_range(members: Members, counts: Counts) -> dict[str, Partitions]:
    """Give each member a range of consecutive partitions of each topic it subscribes to.

    The first members get one more if the partitions do not divide evenly. Topics with the same
    number of partitions and the same subscribers are assigned alike, so that they can be joined.
    """
    assigned: Assigned = {member_id: {} for member_id in members}
    order = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    for topic in sorted(counts):
        readers = [member_id for member_id in order if topic in members[member_id].topics]
        if readers:
            _divide(topic, counts[topic], readers, assigned)
    return _frozen(assigned)


def _range_order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Sort static members first, by instance id, which does not change when they restart."""
    static = member.instance_id is not None
    return not static, member.instance_id if member.instance_id is not None else member_id


def _divide(topic: bytes, count: int, readers: list[str], assigned: Assigned) -> None:
    each, extra = divmod(count, len(readers))
    start = 0
    for position, member_id in enumerate(readers):
        end = start + each + (position < extra)
        if start < end:
            assigned[member_id][topic] = set(range(start, end))
        start = end


def assign_uniform(members: Members, counts: Counts) -> dict[str, Partitions]:
    """Give all members equally many partitions, and keep as many current ones as possible."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _frozen(_uniform_homogeneous(members, counts, next(iter(subscriptions))))
    return _frozen(_uniform_heterogeneous(members, counts))


# ---- uniform, all members subscribe to the same topics ----


def _uniform_homogeneous(members: Members, counts: Counts, topics: frozenset[bytes]) -> Assigned:
    """Assign by quotas. Members that already have more get the quotas that are one higher."""
    kept = {member_id: _kept(members[member_id], counts) for member_id in sorted(members)}
    each, extra = divmod(sum(counts[topic] for topic in topics), len(members))
    quotas = {}
    for member_id in sorted(kept, key=lambda member_id: -len(kept[member_id])):
        quotas[member_id] = each + (extra > 0)
        extra -= extra > 0
    taken: set[tuple[bytes, int]] = set()
    for member_id, partitions in kept.items():
        del partitions[quotas[member_id] :]
        taken.update(partitions)
    free = [partition for partition in _all_partitions(topics, counts) if partition not in taken]
    _deal(free, kept, quotas)
    return _by_topic(kept)


def _deal(
    free: list[tuple[bytes, int]], kept: dict[str, list[tuple[bytes, int]]], quotas: dict[str, int]
) -> None:
    """Assign the free partitions round robin, so that the partitions of a topic are spread."""
    below_quota = [member_id for member_id in kept if len(kept[member_id]) < quotas[member_id]]
    position = 0
    for partition in free:
        position %= len(below_quota)
        member_id = below_quota[position]
        kept[member_id].append(partition)
        if len(kept[member_id]) == quotas[member_id]:
            del below_quota[position]
        else:
            position += 1


# ---- uniform, in general ----


def _uniform_heterogeneous(members: Members, counts: Counts) -> Assigned:
    readers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic in members[member_id].topics:
            readers.setdefault(topic, []).append(member_id)
    kept = {member_id: _kept(members[member_id], counts) for member_id in sorted(members)}
    assigned = _by_topic(kept)
    loads = {member_id: len(partitions) for member_id, partitions in kept.items()}
    taken = {partition for partitions in kept.values() for partition in partitions}
    # Topics with few readers first: they leave the fewest choices.
    for topic in sorted(readers, key=lambda topic: (len(readers[topic]), topic)):
        free = [partition for partition in range(counts[topic]) if (topic, partition) not in taken]
        if free:
            _fill(topic, free, readers[topic], assigned, loads)
    balance(assigned, loads, readers)
    return assigned


def _fill(
    topic: bytes, free: list[int], members: list[str], assigned: Assigned, loads: dict[str, int]
) -> None:
    """Give each partition to the member with the lowest load; the first one on a tie."""
    by_load = [(loads[member_id], position) for position, member_id in enumerate(members)]
    heapify(by_load)
    for partition in free:
        load, position = by_load[0]
        member_id = members[position]
        assigned[member_id].setdefault(topic, set()).add(partition)
        loads[member_id] = load + 1
        heapreplace(by_load, (load + 1, position))


# ---- shared ----


def _kept(member: MemberSpec, counts: Counts) -> list[tuple[bytes, int]]:
    """Return the partitions of the member's current target that it may keep."""
    return [
        (topic, partition)
        for topic in sorted(member.target)
        if topic in member.topics
        for partition in sorted(member.target[topic])
        if 0 <= partition < counts[topic]
    ]


def _all_partitions(topics: frozenset[bytes], counts: Counts) -> list[tuple[bytes, int]]:
    return [(topic, partition) for topic in sorted(topics) for partition in range(counts[topic])]


def _by_topic(partitions: Mapping[str, list[tuple[bytes, int]]]) -> Assigned:
    assigned: Assigned = {member_id: {} for member_id in partitions}
    for member_id, rows in partitions.items():
        for topic, partition in rows:
            assigned[member_id].setdefault(topic, set()).add(partition)
    return assigned


def _frozen(assigned: Assigned) -> dict[str, Partitions]:
    return {
        member_id: {topic: frozenset(rows) for topic, rows in topics.items() if rows}
        for member_id, topics in assigned.items()
    }


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
