"""Offsets of groups follow a mirror, on two real brokers and without Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.client.consumer import Consumer
from millstream.client.producer import Producer
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.core.types import TopicPartition
from support.connect.mirror_directions import World


class TestGroups:
    def test_group_continues_at_first_unread_copy_despite_gaps(self, world: World) -> None:
        world.copy([0, 1, 4, 9, 10])
        source, target = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        sync = world.groups()
        for committed, expected in ((1, 1), (2, 2), (4, 2), (5, 3), (10, 4), (11, 5)):
            world.a.groups.alter(world.group, {source: committed})
            sync.run()
            assert world.b.groups.committed(world.group) == {target: expected}, committed
        assert sync.run() == {}

    def test_group_ahead_of_the_mirror_waits_at_the_end(self, world: World) -> None:
        world.copy([0, 1])
        source, target = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.a.groups.alter(world.group, {source: 4})
        sync = world.groups()
        assert sync.run() == {world.group: {target: 2}}
        world.copy([2, 3, 4])
        assert sync.run() == {world.group: {target: 4}}

    def test_uncommitted_copies_are_not_skipped(self, world: World) -> None:
        source, target = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.copy([0])
        world.a.groups.alter(world.group, {source: 1})
        bootstrap = world.b.connection.bootstrap
        with Producer(bootstrap, transactional_id=world.topic) as producer, producer.transaction():
            producer.send(target.topic, b"open", partition=0, headers=[(HEADER, b"x/y/0/1")])
            producer.flush()
            assert world.groups().run() == {world.group: {target: 1}}

    def test_offsets_never_move_back_nor_override_active_groups(self, world: World) -> None:
        world.copy(range(10))
        source, target = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.a.groups.alter(world.group, {source: 3})
        world.b.groups.alter(world.group, {target: 7})
        sync = world.groups()
        assert sync.run() == {}, "it has read further in b"
        world.a.groups.alter(world.group, {source: 8})
        assert sync.run() == {world.group: {target: 8}}
        world.b.groups.alter(world.group, {target: 2})
        assert sync.run() == {}, "it was reset on purpose"
        world.a.groups.alter(world.group, {source: 9})
        with Consumer(
            world.b.connection.bootstrap, target.topic, group=world.group, auto_commit=False
        ) as live:
            while not live.poll():
                pass
            assert sync.run() == {}, "it is active there"
        assert sync.run() == {world.group: {target: 9}}

    def test_unselected_groups_are_not_translated(self, world: World) -> None:
        world.copy([0])
        world.a.groups.alter(world.group, {TopicPartition(world.topic, 0): 1})
        assert world.groups(groups="others").run() == {}

    def test_copies_of_target_records_translate_to_the_originals(self, world: World) -> None:
        world.b.topics.create(world.topic, partitions=1)
        world.a.topics.create(f"b.{world.topic}", partitions=1)
        world.send(world.b, world.topic, 6)
        with Producer(world.a.connection.bootstrap) as producer:
            for offset in (0, 2, 5):
                origin = Origin(world.ids().target, world.topic, 0, offset)
                producer.send(f"b.{world.topic}", b"c", headers=[(HEADER, origin.encode())])
        sync = world.groups(both=True)
        for committed, expected in ((1, 2), (2, 5), (3, 6)):
            world.a.groups.alter(world.group, {TopicPartition(f"b.{world.topic}", 0): committed})
            sync.run()
            assert world.b.groups.committed(world.group) == {
                TopicPartition(world.topic, 0): expected
            }

    def test_unread_records_of_a_shared_topic_are_not_skipped(self, world: World) -> None:
        """a: its 0, 1, b's 0, its 3. b: its 0, a's 0 and 1, its 3."""
        partition, ids = TopicPartition(world.topic, 0), world.ids()
        world.b.topics.create(world.topic, partitions=1)
        with Producer(world.a.connection.bootstrap) as producer:
            for origin in (None, None, Origin(ids.target, world.topic, 0, 0), None):
                headers = None if origin is None else [(HEADER, origin.encode())]
                producer.send(world.topic, b"v", headers=headers)
        world.send(world.b, world.topic, 1)
        world.copy([0, 1], to=world.topic)
        world.send(world.b, world.topic, 1)
        expected = {0: 0, 1: 0, 2: 0, 3: 3, 4: 3}  # 1: b's 0 is unread; 3: all but b's own 3
        for committed, offset in expected.items():
            sync = world.groups(both=True, naming="identity", groups=f"{world.group}-{committed}")
            world.a.groups.alter(f"{world.group}-{committed}", {partition: committed})
            sync.run()
            assert world.b.groups.committed(f"{world.group}-{committed}") == {partition: offset}, (
                committed
            )
