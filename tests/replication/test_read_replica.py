"""KIP-392: which replica a consumer is told to read from."""

from __future__ import annotations

import pytest

from millstream.replication.leader import LeaderReplicas
from millstream.replication.read_replica import preferred_replica

RACKS = {0: "north", 1: "east", 2: "east", 3: "south"}


def replicas(ends: dict[int, int], isr: tuple[int, ...] = (0, 1, 2, 3)) -> LeaderReplicas:
    """Broker 0 leads; the others hold what is between 10 and their end."""
    made = LeaderReplicas(
        0,
        leader_epoch=1,
        partition_epoch=1,
        replicas=(0, *ends),
        isr=isr,
        log_end=100,
        now_ms=0,
    )
    for node, end in ends.items():
        made.on_fetch(node, end, 10, 100, broker_epoch=1, now_ms=node)
    return made


@pytest.mark.parametrize(
    ("rack", "ends", "isr", "offset", "chosen"),
    [
        ("", {1: 100}, (0, 1), 50, None),  # a consumer that does not say where it is
        ("north", {1: 100}, (0, 1), 50, None),  # the leader is as near as can be
        ("west", {1: 100}, (0, 1), 50, None),  # nobody is there
        ("east", {1: 100}, (0, 1), 50, 1),
        ("east", {1: 100}, (0, 1), 100, 1),  # it waits there for what comes
        ("east", {1: 90}, (0, 1), 95, None),  # it has not got that far
        ("east", {1: 100}, (0, 1), 5, None),  # it no longer has that
        ("east", {1: 100}, (0,), 50, None),  # out of sync
        ("east", {1: 90, 2: 95, 3: 100}, (0, 1, 2, 3), 50, 2),  # the one that has most
        ("east", {1: 100, 2: 100}, (0, 1, 2), 50, 2),  # the one that was last caught up
    ],
)
def test_the_replica_in_the_rack(
    rack: str, ends: dict[int, int], isr: tuple[int, ...], offset: int, chosen: int | None
) -> None:
    assert preferred_replica(replicas(ends, isr), 0, rack, RACKS, offset) == chosen
