"""Where replicas go: partition i begins at broker i mod n, its replica j is on broker (i + j) mod n.

With racks, brokers are dealt out rack by rack first, and a replica skips brokers of a rack that has one already while another
rack has none. Without racks that is the plain rule. Brokers that name no rack share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from millstream.core.errors import ApiError, ErrorCode


def place(
    brokers: Sequence[int],
    first: int,
    count: int,
    replication_factor: int,
    racks: Mapping[int, str | None] | None = None,
) -> dict[int, tuple[int, ...]]:
    """The replicas of partitions ``first`` to ``first + count - 1``."""
    n = len(brokers)
    if replication_factor > n:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {n} broker(s) are registered.",
        )
    rack_of = {broker: (racks or {}).get(broker) for broker in brokers}
    ordered = _rack_by_rack(rack_of)
    if len(set(rack_of.values())) == 1:
        return {
            i: tuple(ordered[(i + j) % n] for j in range(replication_factor))
            for i in range(first, first + count)
        }
    return {i: _spread(ordered, i, replication_factor, rack_of) for i in range(first, first + count)}


def _rack_by_rack(rack_of: Mapping[int, str | None]) -> list[int]:
    """One broker of each rack, then the second of each, and so on."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(rack_of):
        racks.setdefault(rack_of[broker], []).append(broker)
    return [broker for round_ in zip_longest(*racks.values()) for broker in round_ if broker is not None]


def _spread(
    ordered: Sequence[int], start: int, factor: int, rack_of: Mapping[int, str | None]
) -> tuple[int, ...]:
    left = [ordered[(start + j) % len(ordered)] for j in range(len(ordered))]
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


def check_assignment(replicas: Sequence[int], brokers: Sequence[int]) -> tuple[int, ...]:
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
