"""Where replicas go: partition i begins at broker i mod n, its replica j is on broker (i + j) mod n.

With racks, brokers are dealt out rack by rack first, and a replica skips brokers of a rack that has one already while another
rack has none. Without racks that is the plain rule. Brokers that name no rack share one.

A broker that is away counts, but comes after every live broker of its rack, and never first: the first replica leads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from millstream.core.errors import ApiError, ErrorCode


def place(
    brokers: Sequence[int],
    first: int,
    count: int,
    replication_factor: int,
    racks: Mapping[int, str | None] | None = None,
    away: Collection[int] = (),
) -> dict[int, tuple[int, ...]]:
    """The replicas of partitions ``first`` to ``first + count - 1``. Of the ``brokers``, some may be ``away``."""
    n = len(brokers)
    if replication_factor > n:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {n} broker(s) are registered.",
        )
    rack_of = {broker: (racks or {}).get(broker) for broker in brokers}
    live = _rack_by_rack({broker: rack for broker, rack in rack_of.items() if broker not in away})
    missing = _rack_by_rack({broker: rack for broker, rack in rack_of.items() if broker in away})
    if not live:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced.",
        )
    one_rack = len(set(rack_of.values())) == 1
    placed: dict[int, tuple[int, ...]] = {}
    for i in range(first, first + count):
        ordered = _rotated(live, i) + _rotated(missing, i)
        placed[i] = (
            tuple(ordered[:replication_factor]) if one_rack else _spread(ordered, replication_factor, rack_of)
        )
    return placed


def initial_isr(replicas: Sequence[int], away: Collection[int]) -> tuple[int, ...]:
    """Return the replicas of a new partition that are in sync, which are those on live brokers."""
    return tuple(broker for broker in replicas if broker not in away)


def _rotated(brokers: Sequence[int], start: int) -> list[int]:
    turn = start % len(brokers) if brokers else 0
    return [*brokers[turn:], *brokers[:turn]]


def _rack_by_rack(rack_of: Mapping[int, str | None]) -> list[int]:
    """One broker of each rack, then the second of each, and so on."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(rack_of):
        racks.setdefault(rack_of[broker], []).append(broker)
    return [broker for round_ in zip_longest(*racks.values()) for broker in round_ if broker is not None]


def _spread(ordered: Sequence[int], factor: int, rack_of: Mapping[int, str | None]) -> tuple[int, ...]:
    """Take brokers in order, one of each rack before the second of any."""
    left = list(ordered)
    chosen: list[int] = []
    used: set[str | None] = set()
    while len(chosen) < factor:
        broker = next((one for one in left if rack_of[one] not in used), None)
        if broker is None:  # every rack that has brokers left has a replica
            used.clear()
            continue
        chosen.append(broker)
        left.remove(broker)
        used.add(rack_of[broker])
    return tuple(chosen)


def check_assignment(replicas: Sequence[int], brokers: Collection[int]) -> tuple[int, ...]:
    """A replica list that a user gave for one partition."""
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    for index, broker in enumerate(replicas):
        if broker not in brokers:
            raise _invalid(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker in replicas[:index]:
            raise _invalid(f"The manual partition assignment includes the broker {broker} more than once.")
    return tuple(replicas)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
