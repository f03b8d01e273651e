"""Brokers that join, fail, restart, stop, lose directories or have no room."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from millstream.cluster.controller.feed_service import FeedService
from millstream.control import znodes
from millstream.control.image import NodeData
from millstream.control.znodes import BrokerRegistration, PartitionState
from millstream.core.errors import ErrorCode
from millstream.wire.messages.controller_feed import ControllerFeedRequest, OfflineReplicas
from support.cluster.controller_world import ID, T0, World, broker, on


def test_the_next_isr_member_replaces_a_failed_leader():
    async def test(world: World) -> None:
        await world.registered(broker(2), broker(3))
        assert world.now == PartitionState(2, 6, (2, 3), 3, 1)
        assert set(world.state.image.brokers) == {2, 3}

    on(test)


def test_a_restart_between_two_reads_is_noticed_by_the_epoch():
    async def test(world: World) -> None:
        await world.registered(broker(1, epoch=99), broker(2), broker(3))
        assert world.now == PartitionState(2, 6, (2, 3), 3, 1)
        assert world.state.image.brokers[1].epoch == 99

    on(test)


def torn(node: int, epoch: int) -> BrokerRegistration:
    return replace(broker(node, epoch), torn=True)


def test_torn_broker_leads_only_as_the_last_isr_member():
    async def test(world: World) -> None:
        await world.registered()
        assert (world.now.leader, world.now.isr) == (-1, (1, 2, 3))
        await world.registered(torn(1, 97))
        assert (world.now.leader, world.now.isr) == (-1, (2, 3))
        await world.registered(torn(1, 97), broker(2, 98))
        assert (world.now.leader, world.now.isr) == (2, (2,))
        await world.registered()
        await world.registered(torn(2, 99))
        assert (world.now.leader, world.now.isr) == (2, (2,)), "nobody else is known to have more"

    on(test)


def test_torn_broker_leaves_the_isr_at_the_start_of_a_term():
    async def test(world: World) -> None:
        await world.registered()
        data = znodes.encode_broker(torn(1, 97), now_ms=0)
        world.state.image.apply(znodes.broker_path(1), data, 97)  # read by the next controller
        await world.partitions.brokers.reconcile()
        assert (world.now.leader, world.now.isr) == (-1, (2, 3))

    on(test)


def test_a_restart_without_a_controller_is_noticed_by_the_next_one():
    async def test(world: World) -> None:
        await world.partitions.brokers.reconcile()
        assert world.now == PartitionState(1, 5, (1, 2, 3)), "nobody was away"
        # The next controller reads another registration of broker 1 than the one before has stored.
        world.state.publish(
            [NodeData(znodes.broker_path(1), znodes.encode_broker(broker(1), now_ms=0), 99)]
        )
        await world.partitions.brokers.reconcile()
        assert world.now == PartitionState(2, 6, (2, 3), 3, 1)
        assert world.state.image.brokers[1].epoch == world.state.image.broker_epochs[1] == 99
        await world.partitions.brokers.reconcile()
        assert world.now == PartitionState(2, 6, (2, 3), 3, 1), "once is enough"

    on(test)


def test_a_new_broker_is_stored_before_it_can_be_in_sync():
    async def test(world: World) -> None:
        await world.registered(broker(1), broker(2))
        node = await world.store.get(znodes.BROKER_EPOCHS)
        assert node is not None and znodes.decode_broker_epochs(node.data) == {1: 10, 2: 20}

    on(test)


def test_a_leaderless_partition_elects_a_returning_isr_member():
    async def test(world: World) -> None:
        await world.registered(broker(2), broker(3))
        assert world.now.leader == -1
        await world.registered(broker(1, epoch=99), broker(2), broker(3))
        assert (world.now.leader, world.now.isr) == (1, (1,))

    on(test, state=PartitionState(1, 5, (1,)))


def test_a_stopping_broker_may_stop_when_it_knows_it_leads_nothing():
    async def test(world: World) -> None:
        assert not await world.partitions.brokers.stop_broker(1, 10)
        assert world.now == PartitionState(2, 6, (2, 3), 3, 1)
        await world.term.feed.read(1, 3, -1, more_of_snapshot=False, wait_s=0)
        await world.term.feed.read(1, 3, world.term.feed.position, more_of_snapshot=False, wait_s=0)
        assert await world.partitions.brokers.stop_broker(1, 10)
        assert await world.propose((2, 20), (3, 30), (1, 10), node=2, epoch=6, version=1) is (
            ErrorCode.INELIGIBLE_REPLICA
        )

    on(test)


def test_report_of_an_earlier_process_is_ignored_after_a_restart():
    """The report waited for the lock.

    The new process would lead nothing until the next controller.
    """

    async def test(world: World) -> None:
        feed = FeedService(world.state, world.partitions)
        await world.state.lock.acquire()  # some other change
        report = ControllerFeedRequest(
            broker_id=2,
            broker_epoch=20,
            wants_to_stop=True,
            controller_epoch=3,
            position=world.term.feed.position,
            offline_replicas=[OfflineReplicas(topic_id=ID, partitions=[0])],
        )
        asking = asyncio.ensure_future(feed.ask(report))
        await asyncio.sleep(0.01)
        changing = asyncio.ensure_future(
            world.registered(broker(1), broker(2, epoch=99), broker(3))
        )
        await asyncio.sleep(0.01)
        world.state.lock.release()
        await asyncio.gather(asking, changing)
        assert world.state.image.brokers[2].epoch == 99
        assert world.state.image.stopping == frozenset()
        assert (
            await world.propose((1, 10), (3, 30), (2, 99), version=world.now.partition_epoch)
            == world.now
        )

    on(test)


def test_only_a_registered_broker_counts_as_having_applied_changes():
    """A starting broker may not have loaded its logs: it knows changes that it has not applied."""

    async def test(world: World) -> None:
        feed, position = FeedService(world.state, world.partitions), world.term.feed.position
        starting = ControllerFeedRequest(broker_id=2, controller_epoch=3, position=position)
        await feed.ask(starting)
        assert world.term.feed.applied_position(2) < position
        starting.broker_epoch = 20
        await feed.ask(starting)
        assert world.term.feed.applied_position(2) == position

    on(test)


def test_failed_directory_is_known_until_it_is_back_or_broker_fails():
    async def test(world: World) -> None:
        feed = FeedService(world.state, world.partitions)
        telling = ControllerFeedRequest(broker_id=2, broker_epoch=20, directories_offline=True)
        await feed.ask(ControllerFeedRequest.decode(memoryview(telling.encode(0)), 0)[0])
        assert not world.partitions.unavailable.has_all_directories(2)
        await feed.ask(ControllerFeedRequest(broker_id=2, broker_epoch=20))
        assert world.partitions.unavailable.has_all_directories(2)
        await feed.ask(telling)
        await world.registered(broker(1), broker(3))
        assert world.partitions.unavailable.has_all_directories(2)

    on(test)


def test_offline_replica_loses_leadership_until_it_is_online_again():
    async def test(world: World) -> None:
        await world.partitions.brokers.replicas_offline(1, 10, frozenset({T0}))
        assert world.now == PartitionState(-1, 6, (1,), 3, 1)
        await world.partitions.brokers.replicas_offline(1, 10, frozenset())
        assert world.now == PartitionState(1, 7, (1,), 3, 2)

    on(test, state=PartitionState(1, 5, (1,)))


def test_partitions_left_without_a_state_get_one():
    async def test(world: World) -> None:
        await world.state.commit(
            [(znodes.topic_path("t"), znodes.encode_topic(ID, {0: (1, 2, 3), 1: (9, 2, 3)}))]
        )
        await world.partitions.brokers.reconcile()
        assert world.state.image.topics["t"].states[1] == PartitionState(2, 0, (2, 3), 3, 0)
        assert world.now == PartitionState(1, 5, (1, 2, 3), 1, 0)

    on(test)


def test_full_replicas_leave_the_isr_and_leaders_with_room_are_elected():
    async def test(world: World) -> None:
        feed = FeedService(world.state, world.partitions)
        rows = [OfflineReplicas(topic_id=ID, partitions=[0])]
        await feed.ask(ControllerFeedRequest(broker_id=1, broker_epoch=10, full_replicas=rows))
        assert (world.now.leader, world.now.leader_epoch, world.now.isr) == (2, 6, (2, 3))
        assert world.state.image.full == {1: frozenset({T0})}
        refused = await world.propose((2, 20), (3, 30), (1, 10), node=2, epoch=6, version=1)
        assert refused is ErrorCode.INELIGIBLE_REPLICA
        await feed.ask(ControllerFeedRequest(broker_id=1, broker_epoch=10))
        assert world.state.image.full == {}
        joined = await world.propose((2, 20), (3, 30), (1, 10), node=2, epoch=6, version=1)
        assert isinstance(joined, PartitionState) and joined.isr == (2, 3, 1)

    on(test)


def test_broker_that_restarted_is_no_longer_full():
    async def test(world: World) -> None:
        await world.partitions.brokers.replicas_full(2, 99, frozenset({T0}))
        assert world.now.isr == (1, 2, 3), "told by an earlier registration"
        await world.partitions.brokers.replicas_full(2, 20, frozenset({T0}))
        assert world.now.isr == (1, 3)
        await world.registered(broker(1), broker(2, 99), broker(3))
        assert world.state.image.full == {}
        joined = await world.propose((1, 10), (3, 30), (2, 99), version=world.now.partition_epoch)
        assert isinstance(joined, PartitionState) and joined.isr == (1, 3, 2)

    on(test)
