"""Reassignments of replicas: started, completed and cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.control import znodes
from millstream.control.image import NodeData
from millstream.control.topics import NewTopic, state_write
from millstream.control.znodes import Assignment, PartitionState
from millstream.core.config import BrokerConfig
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.coordination import Write
from support.cluster.controller_world import ID, T0, World, broker, on


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
        assert (
            outcome is ErrorCode.NEW_LEADER_ELECTED
        )  # the leader that proposed it is no longer a replica
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
        new = NewTopic(
            "large", -1, -1, assignment=tuple((index, (1, 2, 3)) for index in range(count))
        )
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
            IsrRequest(topic.topic_id, i, 0, topic.states[i].partition_epoch, isr)
            for i in range(count)
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
        refused = await world.partitions.reassignments.reassign(
            {T0: None, TopicPartition("u", 0): (1,)}
        )
        assert {tp: error.code for tp, error in refused.items() if error} == {
            T0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            TopicPartition("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    on(test)
