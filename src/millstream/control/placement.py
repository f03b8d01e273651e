"""Replica placement: replica j of partition i is on broker (i + j) mod n.

With racks, brokers are ordered so that racks alternate. A replica skips the brokers of a rack that
has a replica already while another rack has none. Brokers without a rack share one.

Brokers that are down get replicas too. They come after every live broker of their rack and never
first, because the first replica leads.
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
    down: Collection[int] = (),
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of ``count`` partitions from ``first`` on; ``down`` brokers may be
    included.
    """
    n = len(brokers)
    if replication_factor > n:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication "
            f"factor of {replication_factor} cannot be reached because only {n} broker(s) are "
            "registered.",
        )
    rack_of = {broker: (racks or {}).get(broker) for broker in brokers}
    live = _rack_by_rack({broker: rack for broker, rack in rack_of.items() if broker not in down})
    down_last = _rack_by_rack({broker: rack for broker, rack in rack_of.items() if broker in down})
    if not live:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): "
            "All brokers are currently fenced.",
        )
    one_rack = len(set(rack_of.values())) == 1
    placed: dict[int, tuple[int, ...]] = {}
    for i in range(first, first + count):
        ordered = _rotated(live, i) + _rotated(down_last, i)
        placed[i] = (
            tuple(ordered[:replication_factor])
            if one_rack
            else _spread(ordered, replication_factor, rack_of)
        )
    return placed


def initial_isr(replicas: Sequence[int], down: Collection[int]) -> tuple[int, ...]:
    """Return the replicas of a new partition that are in sync, which are those on live brokers."""
    return tuple(broker for broker in replicas if broker not in down)


def _rotated(brokers: Sequence[int], start: int) -> list[int]:
    turn = start % len(brokers) if brokers else 0
    return [*brokers[turn:], *brokers[:turn]]


def _rack_by_rack(rack_of: Mapping[int, str | None]) -> list[int]:
    """Order brokers so that racks alternate: the first of each rack, then the second of each."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(rack_of):
        racks.setdefault(rack_of[broker], []).append(broker)
    return [
        broker for round_ in zip_longest(*racks.values()) for broker in round_ if broker is not None
    ]


def _spread(
    ordered: Sequence[int], factor: int, rack_of: Mapping[int, str | None]
) -> tuple[int, ...]:
    """Take brokers in order, one of each rack before a second one of any rack."""
    left = list(ordered)
    chosen: list[int] = []
    used: set[str | None] = set()
    while len(chosen) < factor:
        broker = next((node for node in left if rack_of[node] not in used), None)
        if broker is None:
            # Every rack with remaining brokers has a replica.
            used.clear()
            continue
        chosen.append(broker)
        left.remove(broker)
        used.add(rack_of[broker])
    return tuple(chosen)


def check_assignment(replicas: Sequence[int], brokers: Collection[int]) -> tuple[int, ...]:
    """Return a user's replica list for one partition; raise ApiError if it is invalid."""
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    for index, broker in enumerate(replicas):
        if broker not in brokers:
            raise _invalid(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker in replicas[:index]:
            raise _invalid(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
    return tuple(replicas)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
