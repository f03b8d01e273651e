"""Where replicas go: partition i begins at broker i mod n, its replica j is the next broker but j - 1."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.errors import ApiError, ErrorCode


def place(
    brokers: Sequence[int], first: int, count: int, replication_factor: int
) -> dict[int, tuple[int, ...]]:
    """The replicas of partitions ``first`` to ``first + count - 1``."""
    n = len(brokers)
    if replication_factor > n:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {n} broker(s) are registered.",
        )
    ordered = sorted(brokers)
    return {
        i: tuple(ordered[(i + j) % n] for j in range(replication_factor)) for i in range(first, first + count)
    }


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
