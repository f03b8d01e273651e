"""The controller's changes to partitions, made durable.

Brokers join, fail, stop and lose directories; leaders propose ISRs; operators reassign.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.feed_service import FeedService
from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState, Term
from millstream.control import znodes
from millstream.control.image import ClusterImage, NodeData
from millstream.control.topics import NewTopic, state_write
from millstream.control.znodes import Assignment, BrokerEndpoint, BrokerRegistration, PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.coordination import Create, Delete, Put, TooLarge, Write
from millstream.ports.embedded_coordination import EmbeddedCoordination
from millstream.sim.world.disk import SimDisk
from millstream.wire.messages.controller_feed import ControllerFeedRequest, OfflineReplicas

ID = b"t" * 16
T0 = TopicPartition("t", 0)


def broker(node: int, epoch: int = 0) -> BrokerRegistration:
    return BrokerRegistration(
        node, (BrokerEndpoint("PLAINTEXT", "h", 9092 + node),), epoch=epoch or node * 10
    )


class World:
    """A controller of epoch 3 with brokers 1, 2, 3 and a partition t-0 on all of them, led by 1."""

    async def open(self, *, unclean: bool = False, state: PartitionState | None = None) -> World:
        disk = SimDisk()
        disk.makedirs("/d")
        self.store = EmbeddedCoordination(disk, "/d/store")
        await self.store.load()
        await self.store.multi([Create(znodes.CONTROLLER_EPOCH, b"3")])
        self.state = ControllerState(self.store)
        image = ClusterImage()
        self.term = Term(1, 3, 0, image, now_ms=lambda: 0)
        self.state.begin(self.term)
        self.partitions = PartitionControl(self.state, unclean=lambda image, topic: unclean)
        for node in (1, 2, 3):
            data = znodes.encode_broker(broker(node), now_ms=0)
            image.apply(znodes.broker_path(node), data, node * 10)
        await self.state.commit([(znodes.topic_path("t"), znodes.encode_topic(ID, {0: (1, 2, 3)}))])
        await self.state.commit([state_write("t", 0, state or PartitionState(1, 5, (1, 2, 3)))])
        return self

    @property
    def now(self) -> PartitionState:
        """The state in the image, which must be the state in the store."""
        state = self.state.image.topics["t"].states[0]
        return state

    async def durable(self) -> PartitionState:
        node = await self.store.get(znodes.partition_state_path("t", 0))
        assert node is not None
        return znodes.decode_partition_state(node.data, node.version)

    async def registered(self, *brokers: BrokerRegistration) -> None:
        await self.partitions.brokers.brokers_changed(
            {registration.node_id: registration for registration in brokers}
        )

    async def propose(self, *isr: tuple[int, int], node=1, epoch=5, version=0, topic=ID) -> object:
        request = IsrRequest(topic, 0, epoch, version, tuple(isr))
        outcomes = await self.partitions.isr.alter_partitions(node, node * 10, [request])
        return outcomes[topic, 0]


def on(test: Callable[[World], Awaitable[None]], **more: object) -> None:
    async def run() -> None:
        world = await World().open(**more)  # type: ignore[arg-type]
        await test(world)
        if "t" in world.state.image.topics:
            assert await world.durable() == world.now

    asyncio.run(run())


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
        world.state.publish([NodeData(znodes.broker_path(1), znodes.encode_broker(broker(1), now_ms=0), 99)])
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


def test_a_leaderless_partition_may_allow_an_unclean_election():
    async def test(world: World) -> None:
        await world.registered(broker(2), broker(3))
        await world.partitions.elections.elect_offline()
        assert world.now.leader == -1
        world.partitions.elections._unclean = lambda image, topic: True
        await world.partitions.elections.elect_offline()
        assert (world.now.leader, world.now.isr) == (2, (2,))

    on(test, state=PartitionState(1, 5, (1,)))


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
        changing = asyncio.ensure_future(world.registered(broker(1), broker(2, epoch=99), broker(3)))
        await asyncio.sleep(0.01)
        world.state.lock.release()
        await asyncio.gather(asking, changing)
        assert world.state.image.brokers[2].epoch == 99
        assert world.state.image.stopping == frozenset()
        assert await world.propose((1, 10), (3, 30), (2, 99), version=world.now.partition_epoch) == world.now

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
        ({"version": -1, "isr": ((1, 10), (4, 40))}, ErrorCode.INVALID_UPDATE_VERSION),  # a replica once
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


def test_a_deposed_controller_changes_nothing():
    async def test(world: World) -> None:
        await world.store.multi([Put(znodes.CONTROLLER_EPOCH, b"4")])
        doubts: list[bool] = []
        world.state.on_doubt = lambda: doubts.append(True)
        with pytest.raises(ApiError) as refused:
            await world.propose((1, 10), (2, 20))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert not world.state.active and doubts == [True]
        assert await world.durable() == PartitionState(1, 5, (1, 2, 3), 1, 0)

    async def run() -> None:
        await test(await World().open())

    asyncio.run(run())


def test_a_change_that_is_too_large_is_rejected_and_the_term_continues():
    async def too_large(writes: Sequence[Write]) -> None:
        raise TooLarge("1 operation")

    async def test(world: World) -> None:
        world.store.multi = too_large  # type: ignore[method-assign]
        with pytest.raises(ApiError) as refused:
            await world.state.commit([(znodes.topic_config_path("t"), znodes.encode_config({}))])
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert world.state.active

    on(test)


def test_a_store_without_the_epoch_ends_the_term_not_the_broker():
    async def run() -> None:
        world = await World().open()
        await world.store.multi([Delete(znodes.CONTROLLER_EPOCH)])
        with pytest.raises(ApiError) as refused:
            await world.propose((1, 10), (2, 20))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER and not world.state.active

    asyncio.run(run())


@pytest.mark.parametrize("what", ["a proposal", "a failed directory", "a stop"])
def test_a_change_finishes_when_its_caller_is_cancelled(what: str):
    """Otherwise the change is in the store and not in the image.

    The next controller would then read another state, and a broker's report would seem handled.
    """

    async def test(world: World) -> None:
        asks = {
            "a proposal": lambda: world.propose((1, 10), (2, 20)),
            "a failed directory": lambda: world.partitions.brokers.replicas_offline(1, 10, frozenset({T0})),
            "a stop": lambda: world.partitions.brokers.stop_broker(1, 10),
        }
        written, write = asyncio.Event(), world.store.multi

        async def slow(writes: Sequence[Write]) -> None:
            await write(writes)
            written.set()
            await asyncio.sleep(0)

        world.store.multi = slow  # type: ignore[method-assign]
        request = asyncio.ensure_future(asks[what]())
        await written.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await world.state.close()
        assert await world.durable() == world.now
        assert world.now.partition_epoch == 1

    on(test)


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


def test_reassignment_completes_when_the_new_replica_joins_the_isr():
    async def test(world: World) -> None:
        world.term.feed.close()
        data = znodes.encode_broker(broker(4), now_ms=0)
        world.state.publish([NodeData(znodes.broker_path(4), data, 40)])
        assert await world.partitions.reassignments.reassign({T0: (4, 2, 3)}) == {T0: None}
        topic = world.state.image.topics["t"]
        assert topic.assignment(0) == Assignment((4, 2, 3, 1), adding=(4,), removing=(1,))
        assert world.partitions.reassignments.in_progress(None) == {T0: topic.assignment(0)}
        outcome = await world.propose((1, 10), (2, 20), (3, 30), (4, 40), version=1)
        assert outcome is ErrorCode.NEW_LEADER_ELECTED  # the leader that proposed it is no longer a replica
        assert world.state.image.topics["t"].assignment(0) == Assignment((4, 2, 3))
        assert (world.now.leader, world.now.isr, world.now.leader_epoch) == (4, (2, 3, 4), 6)
        assert world.partitions.reassignments.in_progress(None) == {}

    on(test)


def test_reassignments_that_complete_together_all_complete():
    """The node of a topic has the replicas of all its partitions: one must not undo another."""

    async def test(world: World) -> None:
        world.term.feed.close()
        replicas = {0: (1, 2), 1: (1, 2), 2: (1, 2)}
        await world.state.commit([(znodes.topic_path("t"), znodes.encode_topic(ID, replicas))])
        for index in range(3):
            await world.state.commit([state_write("t", index, PartitionState(1, 5, (1, 2)))])
        partitions = [TopicPartition("t", index) for index in range(3)]
        await world.partitions.reassignments.reassign(dict.fromkeys(partitions, (1, 3)))
        topic = world.state.image.topics["t"]
        assert set(topic.reassigning) == {0, 1, 2}
        isr = ((1, 10), (2, 20), (3, 30))
        requests = [IsrRequest(ID, i, 5, topic.states[i].partition_epoch, isr) for i in range(3)]
        await world.partitions.isr.alter_partitions(1, 10, requests)
        assert world.partitions.reassignments.in_progress(None) == {}
        assert world.state.image.topics["t"].replicas == dict.fromkeys(range(3), (1, 3))

    on(test)


def test_reassigning_a_large_topic_writes_its_node_once_per_slice():
    """The node has the replicas of all partitions; a write for each would take quadratic time."""

    async def test(world: World) -> None:
        world.term.feed.close()
        await world.registered(*(broker(node) for node in (1, 2, 3, 4)))
        count = 1200
        new = NewTopic("large", -1, -1, assignment=tuple((index, (1, 2, 3)) for index in range(count)))
        controller = Controller(world.state, BrokerConfig({}), new_id=lambda: b"l" * 16)
        await controller.create_topics([new])
        write, nodes = world.store.multi, Counter[str]()

        async def counted(writes: Sequence[Write]) -> None:
            nodes.update(write.path for write in writes)
            await write(writes)

        world.store.multi = counted  # type: ignore[method-assign]
        partitions = [TopicPartition("large", index) for index in range(count)]
        wishes = dict.fromkeys(partitions, (1, 2, 4))
        assert set((await world.partitions.reassignments.reassign(wishes)).values()) == {None}
        assert nodes[znodes.topic_path("large")] == 3
        topic = world.state.image.topics["large"]
        assert len(topic.reassigning) == count
        isr = ((1, 10), (2, 20), (3, 30), (4, 40))
        requests = [
            IsrRequest(topic.topic_id, i, 0, topic.states[i].partition_epoch, isr) for i in range(count)
        ]
        await world.partitions.isr.alter_partitions(1, 10, requests)
        topic = world.state.image.topics["large"]
        assert nodes[znodes.topic_path("large")] == 6
        assert not topic.reassigning and set(topic.replicas.values()) == {(1, 2, 4)}
        assert {state.isr for state in topic.states.values()} == {(1, 2, 4)}
        node = await world.store.get(znodes.topic_path("large"))
        assert node is not None and znodes.decode_topic(node.data)[1] == topic.replicas

    on(test)


def test_a_replica_of_a_down_broker_may_stay_but_not_be_added():
    async def test(world: World) -> None:
        world.term.feed.close()
        await world.registered(broker(1), broker(2), broker(4))
        assert await world.partitions.reassignments.reassign({T0: (1, 4, 3)}) == {T0: None}
        assert world.state.image.topics["t"].reassigning[0] == Assignment((1, 4, 3, 2), (4,), (2,))
        await world.propose((1, 10), (2, 20), (4, 40), version=2)
        assert world.now.isr == (1, 2, 4) and world.partitions.reassignments.in_progress(None), (
            "2 goes when 3 is there"
        )
        refused = (await world.partitions.reassignments.reassign({T0: (1, 5, 3)}))[T0]
        assert refused is not None and refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await world.registered(broker(1), broker(2), broker(3), broker(4))
        await world.propose((1, 10), (2, 20), (3, 30), (4, 40), version=3)
        assert world.now.isr == (1, 3, 4) and not world.partitions.reassignments.in_progress(None)

    on(test)


def test_a_reassignment_can_be_cancelled():
    async def test(world: World) -> None:
        world.term.feed.close()
        assert await world.partitions.reassignments.reassign({T0: (1, 2)}) == {
            T0: None
        }  # fewer: done at once
        assert world.state.image.topics["t"].assignment(0) == Assignment((1, 2))
        data = znodes.encode_broker(broker(4), now_ms=0)
        world.state.publish([NodeData(znodes.broker_path(4), data, 40)])
        await world.partitions.reassignments.reassign({T0: (1, 4)})
        outcome = await world.partitions.reassignments.reassign({T0: None})
        assert outcome == {T0: None}
        assert world.state.image.topics["t"].assignment(0) == Assignment((1, 2))
        refused = await world.partitions.reassignments.reassign({T0: None, TopicPartition("u", 0): (1,)})
        assert {tp: error.code for tp, error in refused.items() if error} == {
            T0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            TopicPartition("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    on(test)


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
