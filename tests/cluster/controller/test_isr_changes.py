"""ISR changes that leaders propose: accepted, or rejected as Kafka's controller does."""

from __future__ import annotations

import pytest

from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from support.cluster.controller_world import T0, World, on


def test_an_accepted_isr_is_the_next_partition_epoch():
    async def test(world: World) -> None:
        assert await world.propose((1, 10), (2, 20)) == PartitionState(1, 5, (1, 2), 3, 1)

    on(test)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": b"u" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ({"version": 1}, ErrorCode.NOT_CONTROLLER),
        ({"version": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        (
            {"version": -1, "isr": ((1, 10), (4, 40))},
            ErrorCode.INVALID_UPDATE_VERSION,
        ),  # a replica once
        ({"node": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((2, 20), (3, 30))}, ErrorCode.INVALID_REQUEST),  # without the leader
        ({"isr": ((1, 10), (4, 40))}, ErrorCode.INVALID_REQUEST),  # no replica
        ({"isr": ((1, 10), (2, 20), (2, 20))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 10), (2, 19))}, ErrorCode.INELIGIBLE_REPLICA),  # of an earlier process
    ],
)
def test_an_isr_is_rejected_with_kafkas_error_codes(changes: dict, code: ErrorCode):
    async def test(world: World) -> None:
        isr = changes.pop("isr", ((1, 10), (2, 20)))
        assert await world.propose(*isr, **changes) is code
        assert world.now == PartitionState(1, 5, (1, 2, 3), 1, 0)

    on(test)


def test_a_leader_with_a_stale_broker_epoch_is_rejected():
    async def test(world: World) -> None:
        with pytest.raises(ApiError) as refused:
            await world.partitions.isr.alter_partitions(1, 9, [])
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH

    on(test)


def test_full_leader_hands_over_when_a_replica_with_room_joins():
    async def test(world: World) -> None:
        await world.partitions.brokers.replicas_full(1, 10, frozenset({T0}))
        assert world.now == PartitionState(1, 5, (1,), 1, 0), "nobody else is in sync"
        outcome = await world.propose((1, 10), (3, 30))
        assert outcome is ErrorCode.NEW_LEADER_ELECTED
        assert (world.now.leader, world.now.leader_epoch, world.now.isr) == (3, 6, (3,))

    on(test, state=PartitionState(1, 5, (1,)))


def test_full_replicas_may_join_a_full_leader():
    async def test(world: World) -> None:
        for node in (1, 2):
            await world.partitions.brokers.replicas_full(node, node * 10, frozenset({T0}))
        outcome = await world.propose((1, 10), (2, 20))
        assert isinstance(outcome, PartitionState) and outcome.isr == (1, 2)
        await world.partitions.brokers.replicas_full(2, 20, frozenset())
        assert (world.now.leader, world.now.isr) == (2, (2,)), "it has room again"

    on(test, state=PartitionState(1, 5, (1,)))
