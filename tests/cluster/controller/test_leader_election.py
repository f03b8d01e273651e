"""Elections of partition leaders, by the controller and on request."""

from __future__ import annotations

from millstream.control.znodes import PartitionState
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from support.cluster.controller_world import T0, World, broker, on


def test_a_leaderless_partition_may_allow_an_unclean_election():
    async def test(world: World) -> None:
        await world.registered(broker(2), broker(3))
        await world.partitions.elections.elect_offline()
        assert world.now.leader == -1
        world.partitions.elections._unclean = lambda image, topic: True
        await world.partitions.elections.elect_offline()
        assert (world.now.leader, world.now.isr) == (2, (2,))

    on(test, state=PartitionState(1, 5, (1,)))


def test_requested_elections_report_why_they_failed():
    async def test(world: World) -> None:
        elect = world.partitions.elections.elect_leaders
        world.term.feed.close()  # no broker follows in this test: do not wait
        unknown = TopicPartition("t", 9)
        assert await elect([T0, unknown], unclean=False) == {
            T0: ErrorCode.ELECTION_NOT_NEEDED,
            unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await elect([T0], unclean=True) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
        await world.registered(broker(2), broker(3))
        assert await elect([T0], unclean=False) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await elect(None, unclean=False) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        await world.registered(broker(1, 99), broker(2), broker(3))
        await world.propose((2, 20), (3, 30), (1, 99), node=2, epoch=6, version=1)
        assert await elect(None, unclean=False) == {T0: ErrorCode.NONE}
        assert world.now.leader == 1

    on(test)


def test_preferred_leaders_return_above_the_imbalance_limit():
    async def test(world: World) -> None:
        await world.partitions.elections.rebalance_leaders(100)
        assert world.now.leader == 2
        await world.partitions.elections.rebalance_leaders(10)
        assert world.now == PartitionState(1, 6, (1, 2, 3), 3, 1)

    on(test, state=PartitionState(2, 5, (1, 2, 3)))
