"""The preferred read replica of a consumer (KIP-392)."""

from __future__ import annotations

import pytest

from millstream.replication.leader import LeaderReplicas
from millstream.replication.read_replica import preferred_replica

RACKS = {0: "north", 1: "east", 2: "east", 3: "south"}


def replicas(ends: dict[int, int], isr: tuple[int, ...] = (0, 1, 2, 3)) -> LeaderReplicas:
    """Return replicas led by broker 0; the others have offsets 10 to their log end."""
    leader_replicas = LeaderReplicas(
        0,
        leader_epoch=1,
        partition_epoch=1,
        replicas=(0, *ends),
        isr=isr,
        log_end=100,
        now_ms=0,
    )
    for node, end in ends.items():
        leader_replicas.on_fetch(node, end, 10, 100, broker_epoch=1, now_ms=node)
    return leader_replicas


@pytest.mark.parametrize(
    ("rack", "ends", "isr", "offset", "chosen"),
    [
        ("", {1: 100}, (0, 1), 50, None),  # a consumer without a rack
        ("north", {1: 100}, (0, 1), 50, None),  # the leader is in the rack
        ("west", {1: 100}, (0, 1), 50, None),  # no replica in that rack
        ("east", {1: 100}, (0, 1), 50, 1),
        ("east", {1: 100}, (0, 1), 100, 1),  # waits there for new records
        ("east", {1: 90}, (0, 1), 95, None),  # does not have the offset yet
        ("east", {1: 100}, (0, 1), 5, None),  # no longer has the offset
        ("east", {1: 100}, (0,), 50, None),  # out of sync
        ("east", {1: 90, 2: 95, 3: 100}, (0, 1, 2, 3), 50, 2),  # the largest log end offset
        ("east", {1: 100, 2: 100}, (0, 1, 2), 50, 2),  # caught up most recently
    ],
)
def test_preferred_replica_is_in_sync_and_in_the_rack(
    rack: str, ends: dict[int, int], isr: tuple[int, ...], offset: int, chosen: int | None
) -> None:
    assert preferred_replica(replicas(ends, isr), 0, rack, RACKS, offset) == chosen
